"""The program inside the sandbox: limits itself, then runs the snippet from stdin as a script.

Compiled by the server and never imported; it uses only modules that an interpreter without `site` has at hand. Every import,
every line of source and every object to free shows here: a trivial call is a few milliseconds.

    stdin (a memory file: this program, then the snippet) -> <workdir>/main.py, kept for tracebacks -> rlimits -> the snippet as `__main__`
    status pipe: "R" limits are set, the snippet is next; "S" it does not compile. Closed before the first line of it runs.

Argv: status fd, workdir, rlimits "NAME=value,...", then entries for sys.path.
"""

import os
import resource
import sys


def main() -> None:
    status, workdir, limits, *paths = sys.argv[1:]
    path = workdir + "/main.py"
    source = _take_stdin()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(fd, source)
    os.close(fd)
    os.chdir(workdir)
    for item in limits.split(","):
        name, value = item.split("=")
        soft = int(value)
        resource.setrlimit(getattr(resource, "RLIMIT_" + name), (soft, soft + (name == "CPU")))  # soft CPU limit: SIGXCPU, told from other kills
    sys.argv[:] = [path]
    sys.path[:0] = [workdir]
    sys.path += paths
    _run(source, path, int(status))


def _take_stdin() -> bytes:
    """All of stdin, which is then /dev/null: the snippet reads EOF."""
    parts = []
    while part := os.read(0, 1 << 20):
        parts.append(part)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return b"".join(parts)


def _run(source: bytes, path: str, status: int) -> None:
    """Run the snippet as the interpreter runs a script, with no frame of ours in its tracebacks."""
    module = sys.modules["__main__"] = type(sys)("__main__")
    os.write(status, b"R\n")
    try:
        code = compile(source, path, "exec", dont_inherit=True)
    except BaseException as e:
        os.write(status, b"S\n")
        sys.excepthook(type(e), e.with_traceback(None), None)
        _end(1, module.__dict__)
    os.close(status)
    import _sitebuiltins
    import builtins

    builtins.exit, builtins.quit = _sitebuiltins.Quitter("exit", "Ctrl-D (i.e. EOF)"), _sitebuiltins.Quitter("quit", "Ctrl-D (i.e. EOF)")
    module.__dict__.update(__builtins__=builtins, __file__=path)
    try:
        exec(code, module.__dict__)
    except SystemExit as e:
        _end(_exit_code(e.code), module.__dict__)
    except BaseException as e:
        trace = e.__traceback__.tb_next
        sys.excepthook(type(e), e.with_traceback(trace), trace)
        _end(1, module.__dict__)
    _end(0, module.__dict__)


def _exit_code(code: object) -> int:
    """What the interpreter makes of sys.exit's argument."""
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


def _end(code: int, namespace: dict) -> None:
    """End as the interpreter does, but leave its memory to the kernel: freeing every object takes a fifth of a trivial call."""
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        if "atexit" in sys.modules:
            sys.modules["atexit"]._run_exitfuncs()
        namespace.clear()  # runs __del__ of what the snippet still held
        for stream in (sys.stdout, sys.__stdout__, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
