"""The program inside the sandbox: reads a snippet, runs it as a script in a child process, reports how it ended.

Passed to `python -c` as text, never imported; it uses only modules that an interpreter without `site` has at hand.

    stdin (a memory file with the snippet) -> <workdir>/main.py -> fork -> child: rlimits, then the snippet as `__main__`
    status pipe: "R" the child is up, limits set; "S" the snippet does not compile; " <wait status>" the child has ended

As PID 1 of the sandbox this process is the parent of every orphan; when it exits the kernel kills whatever the snippet left behind.
Argv: status fd, workdir, rlimits "name=value,...", then entries for sys.path.
"""

import os
import resource
import signal
import sys


def main() -> None:
    status, workdir, limits, *paths = sys.argv[1:]
    status = int(status)
    path = workdir + "/main.py"
    source = _take_stdin()
    with open(path, "wb") as f:
        f.write(source)
    os.chdir(workdir)
    # As PID 1 a signal without a handler is ignored; Python's own SIGINT handler would let the snippet interrupt us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = os.fork()
    if child:
        _reap(child, status)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for item in limits.split(","):
        name, value = item.split("=")
        soft = int(value)
        resource.setrlimit(getattr(resource, "RLIMIT_" + name), (soft, soft + (name == "CPU")))  # a soft CPU limit is SIGXCPU: told from other kills
    sys.argv[:] = [path]
    sys.path[:0] = [workdir]
    sys.path += paths
    _run(source, path, status)


def _take_stdin() -> bytes:
    """All of stdin, which is then /dev/null: the snippet reads EOF."""
    parts = []
    while part := os.read(0, 1 << 20):
        parts.append(part)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return b"".join(parts)


def _reap(child: int, status: int) -> None:
    """Wait for `child`, reaping orphans on the way, report its wait status and end the sandbox. Does not return."""
    os.close(1)
    os.close(2)
    while True:
        pid, how = os.wait()
        if pid == child:
            os.write(status, b" %d" % how)
            os._exit(0)


def _run(source: bytes, path: str, status: int) -> None:
    """Run the snippet as the interpreter runs a script, with no frame of ours in its tracebacks."""
    os.write(status, b"R")
    try:
        code = compile(source, path, "exec", dont_inherit=True)
    except BaseException as e:
        os.write(status, b"S")
        os.close(status)
        sys.excepthook(type(e), e.with_traceback(None), None)
        sys.exit(1)
    os.close(status)
    import _sitebuiltins
    import builtins

    builtins.exit, builtins.quit = _sitebuiltins.Quitter("exit", "Ctrl-D (i.e. EOF)"), _sitebuiltins.Quitter("quit", "Ctrl-D (i.e. EOF)")
    module = sys.modules["__main__"] = type(sys)("__main__")
    module.__dict__.update(__builtins__=builtins, __file__=path)
    try:
        exec(code, module.__dict__)
    except SystemExit:
        raise
    except BaseException as e:
        trace = e.__traceback__.tb_next
        sys.excepthook(type(e), e.with_traceback(trace), trace)
        sys.exit(1)


if __name__ == "__main__":
    main()
