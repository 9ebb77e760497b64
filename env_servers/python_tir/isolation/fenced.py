"""The program of a `fence.FenceSandbox`'s interpreter, run before `runner`: two processes, the warden and the
snippet's.

    stdin: this program, 4 bytes of length, options (marshal), the runner, the job
    warden   collects every orphan; when the snippet's process ends, or on SIGTERM, one kill(-1) ends all others of its
             Landlock domain
    snippet  in a domain of its own inside: reads `readable`, writes the working directory, signals nobody outside; then
             seccomp, then the runner

Compiled by the server and never imported.
"""

import builtins
import ctypes
import marshal
import os
import re
import resource
import signal
import sys
from contextlib import suppress

# the same on every architecture
CREATE_RULESET = 444
ADD_RULE = 445
RESTRICT_SELF = 446
PATH_BENEATH = 1
EXECUTE = 1
WRITE_FILE = 2
READ_FILE = 4
READ_DIR = 8
TRUNCATE = 1 << 14
ALL_FILES = (1 << 16) - 1
ALL_TCP = 3
SCOPE_ABSTRACT_UNIX_SOCKET = 1
SCOPE_SIGNAL = 2
_PR_SET_CHILD_SUBREAPER = 36
MAX_UNSEEN = 1 << 20
"""Tasks of the same user in other containers. With more of them a fork fails for another reason than the limit."""
_libc = ctypes.CDLL(None, use_errno=True)


class Ruleset(ctypes.Structure):
    """struct landlock_ruleset_attr."""

    _fields_ = [("files", ctypes.c_uint64), ("tcp", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class PathBeneath(ctypes.Structure):
    """struct landlock_path_beneath_attr."""

    _pack_ = 1
    _fields_ = [("access", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def _call(number, *args):
    """Make a Landlock system call. Raises OSError."""
    result = _libc.syscall(number, *args)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"landlock: {os.strerror(error)}")
    return result


def restrict(ruleset, rules=()):
    """Refuse everything that is not granted, from now on, to this process and its children.

    Args:
        ruleset: The kinds of access that are restricted.
        rules: Pairs of a path and the access rights that are granted below it.
    """
    fd = _call(CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(ctypes.sizeof(ruleset)), 0)
    for path, access in rules:
        with suppress(FileNotFoundError):
            parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
            _call(ADD_RULE, fd, PATH_BENEATH, ctypes.byref(PathBeneath(access, parent)), 0)
            os.close(parent)
    _call(RESTRICT_SELF, fd, 0)
    os.close(fd)


def watch(child):
    """Wait as the warden until every process has ended, then exit as the snippet did. Does not return."""
    code = 0
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            kill_all()
    if code < 0:
        with suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def kill_all(*_):
    """Kill every process that the domain may signal except the caller: one system call, which no fork can outrun."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(-1, signal.SIGKILL)


def fork():
    """Fork within the call's limit of processes, and write the limit that was needed into argv for the runner.

    The server counts the tasks of its user that it sees. Those of other containers count too, and nothing tells their
    number: the limit grows until the fork succeeds.
    """
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    rlimits = re.fullmatch(r"(.*NPROC=)(\d+)(.*)", sys.argv[3])
    assert rlimits is not None, "the sandbox writes it"
    before, requested, after = rlimits.groups()
    unseen = 0
    while True:
        limit = int(requested) + unseen
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, hard))
        sys.argv[3] = f"{before}{limit}{after}"
        try:
            return os.fork()
        except BlockingIOError:
            if unseen > MAX_UNSEEN:
                raise
            unseen = unseen * 2 or 64


def main():
    """Confine this process and return the runner in the snippet's process."""
    options = marshal.loads(os.read(0, int.from_bytes(os.read(0, 4), "little")))
    kernel = type(sys)("kernel")
    exec(options["kernel"], kernel.__dict__)
    kernel.no_new_privileges()
    kernel.empty_bounding_set()
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed")
    restrict(Ruleset(0, 0, SCOPE_SIGNAL))
    signal.signal(signal.SIGTERM, kill_all)
    child = fork()
    if child:
        os.close(int(sys.argv[1]))
        watch(child)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setsid()
    rules = [(path, EXECUTE | READ_FILE | READ_DIR) for path in options["readable"]]
    rules += [
        ("/dev/null", READ_FILE | WRITE_FILE | TRUNCATE),
        *((f"/dev/{name}", READ_FILE) for name in ("zero", "full", "random", "urandom")),
    ]
    rules += [(sys.argv[2], ALL_FILES)]
    restrict(Ruleset(ALL_FILES, ALL_TCP, SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL), rules)
    kernel.keep_capabilities()
    kernel.seccomp(options["seccomp"])
    return marshal.loads(os.read(0, options["runner"]))


runner = main()
exec(runner, {"__name__": "__main__", "__builtins__": dict(vars(builtins))})
