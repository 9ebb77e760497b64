"""The program inside the sandbox: it limits itself, then runs the snippet from stdin as a script, or execs its program.

Compiled by the server and never imported. It uses only modules that an interpreter without `site` has loaded: a trivial
call takes a few milliseconds, of which every import, line of source and object to free is a visible part.

    stdin (a memory file: this program, then the bytes of `job.pack`)
        -> <workdir>/main.py, kept for tracebacks, and the files of the call -> rlimits
        -> the snippet as `__main__`, with its own stdin; or the file of a `sandbox.Program`, and exec
    status pipe: "R": the limits are set, the snippet is next; "S": it does not compile. Closed before the first line of
        the snippet runs.

Code that runs after the snippet uses names taken before it (`_exit`, `_modules` and others, and the runner's own
builtins): a snippet may replace any attribute of any module, and still ends as it would in a plain interpreter.

Argv: status fd, workdir, rlimits "NAME=value,...", then entries for sys.path. If files are to be returned, the snippet
runs in a child, and this process stays behind to read them.
"""

import _signal
import marshal
import os
import resource
import sys

_close = os.close
_exit = os._exit
_getpid = os.getpid
_kill = os.kill
_write_fd = os.write
_signal_to = _signal.signal
_modules = sys.modules
_default_hook = sys.__excepthook__
SCRIPT = "main.py"
"""Name of the snippet's file."""
UNFINISHED = 1 << 62
"""Size of a fetched file while it is copied. No file may have it: if the runner is killed meanwhile, the server takes
no part for the whole."""
OUR_FRAMES = 6
"""Frames below the snippet, in the fresh and in the warm interpreter. With them added to the limit, recursion ends
where it does in a script."""


def main() -> None:
    """Run the call that is in stdin."""
    # A shell lets programs in the background ignore it: the server, and so this process.
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    status, workdir, limits, *paths = sys.argv[1:]
    path = f"{workdir}/{SCRIPT}"
    source, stdin, files, fetch, program, fetch_fd = marshal.loads(_take_stdin())
    arrange(workdir, source, stdin, files, limits, program)
    if fetch:
        stay_behind(fetch, fetch_fd, int(status))
    if program:
        become(program[1:], int(status))
    sys.argv[:] = [path]
    sys.path[:0] = [workdir]
    sys.path += paths
    run(source, path, int(status))


def arrange(
    workdir: str, source: bytes, stdin: bytes, files: list, limits: str, program: list, more: dict | None = None
) -> None:
    """Write the files and set up stdin, then set the limits. `more` is added to some of them."""
    os.chdir(workdir)
    if stdin:
        _give_stdin(workdir, stdin)  # before the files, one of which may have its name
    for name, content in files:
        if "/" in name:
            os.makedirs(os.path.dirname(name), exist_ok=True)
        _write(name, content)
    if program:
        _write(program[0], source, 0o755)
    elif not os.path.lexists(SCRIPT):  # a file of the call, or a directory, may have its name
        _write(SCRIPT, source)
    limit(limits, more)


def limit(limits: str, more: dict | None = None) -> None:
    """Set rlimits from "NAME=value,...". `more` is added to some of them, by name."""
    for item in limits.split(","):
        name, value = item.split("=")
        soft = int(value) + (more.get(name, 0) if more else 0)
        # The soft limit of CPU is one second lower: its SIGXCPU can be told from other kills.
        resource.setrlimit(getattr(resource, "RLIMIT_" + name), (soft, soft + (name == "CPU")))


def become(argv: list, status: int) -> None:
    """Exec a program. It inherits no descriptor of the runner, and no signal that an interpreter ignores and programs
    rely on."""
    _write_fd(status, b"R\n")
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal_to(number, _signal.SIG_DFL)
    os.closerange(3, 1 << 16)
    try:
        os.execv(argv[0], argv)
    except OSError as e:
        _write_fd(2, f"{argv[0]}: {e.strerror}\n".encode())
        _exit(126)


def _write(path: str, content: bytes, mode: int = 0o644) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    _write_all(fd, content)
    os.close(fd)


def _write_all(fd: int, content: bytes) -> None:
    while content:
        content = content[os.write(fd, content) :]


def _give_stdin(workdir: str, content: bytes) -> None:
    """Make the content stdin, as a file without a name: a pipe would hold no more than its buffer."""
    path = workdir + "/.stdin"
    _write(path, content)
    fd = os.open(path, os.O_RDONLY)
    os.unlink(path)
    os.dup2(fd, 0)
    os.close(fd)


def stay_behind(fetch: list, fd: int, status: int) -> None:
    """Fork and return in the child; the parent waits for it, writes the fetched files, and ends as the child did.

    Each file is written as its size (8 bytes) and its content. A size of -1 means that there is no
    such file, -2 - n that a file of n bytes did not fit. `job.unpack` reads them.

    Args:
        fetch: The bytes that all files together may have, then their paths.
        fd: Descriptor to which the files are written.
        status: Descriptor of the status pipe, which the parent closes.
    """
    child = os.fork()
    if child == 0:
        os.close(fd)
        return
    os.close(status)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    bytes_left, *names = fetch
    for name in names:
        at = os.lseek(fd, 0, os.SEEK_CUR)
        os.write(fd, UNFINISHED.to_bytes(8, "little", signed=True))
        size = -1
        try:
            source = os.open(name, os.O_RDONLY | os.O_NONBLOCK)  # opening a fifo must not wait for a writer
            if os.fstat(source).st_mode & 0o170000 == 0o100000:  # a regular file; /dev/zero has no end
                size = os.fstat(source).st_size
                if size > bytes_left:
                    size = -2 - size
                else:
                    size = 0
                    # in pieces: the whole file may be larger than the memory that the limits leave
                    while piece := os.read(source, min(bytes_left - size, 1 << 20)):
                        _write_all(fd, piece)
                        size += len(piece)
                    bytes_left -= size
            os.close(source)
        except OSError:  # no such file; or a copy breaks off, at the largest size of a file, and is written over
            size = -1
            os.lseek(fd, at + 8, os.SEEK_SET)
        os.pwrite(fd, size.to_bytes(8, "little", signed=True), at)
    if code < 0:
        _die_by(-code)
    os._exit(code)


def _die_by(number: int) -> None:
    """Die by a signal, so that the exit status is that of the snippet."""
    if number != 9:
        _signal_to(number, 0)  # SIG_DFL
    _kill(_getpid(), number)


def _take_stdin() -> bytes:
    """Return all of stdin, and replace it by /dev/null: the snippet reads an end of file."""
    parts = []
    while part := os.read(0, 1 << 20):
        parts.append(part)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return b"".join(parts)


def run(source: bytes, path: str, status: int) -> None:
    """Run the snippet as the interpreter runs a script, without frames of the runner in its tracebacks."""
    module = sys.modules["__main__"] = type(sys)("__main__")
    _write_fd(status, b"R\n")
    try:
        code = compile(source, path, "exec", dont_inherit=True)
    except BaseException as e:
        _write_fd(status, b"S\n")
        sys.excepthook(type(e), e.with_traceback(None), None)
        _end(1, module.__dict__)
    _close(status)
    import builtins

    script_names(builtins)
    module.__dict__.update(__builtins__=builtins, __file__=path)
    try:
        sys.setrecursionlimit(sys.getrecursionlimit() + OUR_FRAMES)
        exec(code, module.__dict__)
    except SystemExit as e:
        _end(exit_code(e.code), module.__dict__)
    except BaseException as e:
        trace = e.__traceback__ and e.__traceback__.tb_next
        try:
            try:
                sys.excepthook(type(e), e.with_traceback(trace), trace)
            except BaseException:  # the snippet's hook fails, or is not callable
                _default_hook(type(e), e.with_traceback(trace), trace)
        finally:
            _end(1 if not isinstance(e, KeyboardInterrupt) else -2, module.__dict__)
    _end(0, module.__dict__)


def script_names(builtins) -> None:
    """Add `exit` and `quit`, which `site` gives to a script."""
    import _sitebuiltins

    builtins.exit = _sitebuiltins.Quitter("exit", "Ctrl-D (i.e. EOF)")
    builtins.quit = _sitebuiltins.Quitter("quit", "Ctrl-D (i.e. EOF)")


def exit_code(code: object) -> int:
    """Return the exit code for an argument of sys.exit, as the interpreter does."""
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    try:
        print(code, file=sys.stderr)
    except BaseException:  # the value cannot be printed, or there is no stderr: the exit code is the same
        return 1
    return 1


def _end(code: int, namespace: dict) -> None:
    """End as the interpreter does, but leave the memory to the kernel: freeing it takes a fifth of a trivial call."""
    try:
        # clear() runs __del__ of the objects that the snippet still holds
        for finish in (_end_threads, _run_exit_functions, namespace.clear, _flush):
            try:
                finish()
            except BaseException:
                continue
    finally:
        if code < 0:
            _die_by(-code)  # as the interpreter ends on Ctrl-C
        _exit(code)


def _end_threads() -> None:
    if "threading" in _modules:
        _modules["threading"]._shutdown()


def _run_exit_functions() -> None:
    if "atexit" in _modules:
        _modules["atexit"]._run_exitfuncs()


def _flush() -> None:
    for name in ("stdout", "__stdout__", "stderr"):
        try:
            stream = getattr(sys, name, None)
            if stream is not None and not stream.closed:
                stream.flush()
        except BaseException:
            continue


if __name__ == "__main__":
    main()
