"""BwrapSandbox: each call is one fresh bubblewrap container with one fresh interpreter.

Covered
- Namespaces: user, pid, mount, network (a loopback of its own and nothing else), ipc, uts, cgroup. An unprivileged uid,
  without capabilities.
- Files: a read-only root with /usr, the interpreter and its site-packages; /tmp and /dev/shm are size-limited tmpfs of
  this call only. Nothing else of the host: no /etc but two files of ours (`localhost`), no /home, no /sys. The
  environment is empty but for what is set here.
- Code comes in an anonymous memory file, output goes out through pipes: other requests, other users see neither.
- rlimits per process, a memory cap over all processes of the call, output caps, a wall clock; see `limits`. When the
  call ends, by itself or not, every process of its pid namespace is dead before the result is returned.
- seccomp (when libseccomp is there; /health says "bwrap+seccomp"): no nested namespaces, mounts, ptrace, keyrings,
  io_uring, bpf, perf; no memory that outlives its mappings; sockets AF_UNIX, TCP and UDP only. See `seccomp`.

Not covered
- Kernel bugs reachable through the allowed system calls.
- Without a control group memory caps are checked every quarter second: a burst can overshoot before it is killed. What
  counts is in `memory`. CPU is bounded by the wall clock times the number of cores, not by cgroups. Files are counted
  then, too.
- What a snippet prints is taken at its word: it can print anything and exit with any code.
- /proc/self/mountinfo names the directories of the host that are bound. flock() on a read-only file is seen by other
  calls.
- Timing: snippets on one machine can tell that others are running.
"""

from __future__ import annotations

import asyncio
import ctypes
import marshal
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from ..limits import Limits
from ..sandbox import Execution, Sandbox, SandboxError, Snippet
from . import job
from .control_group import ControlGroup, ControlGroups
from .stage import Stage
from .supervise import memory_file, supervise

RUNNER = marshal.dumps(
    compile(Path(__file__).with_name("runner.py").read_text(), "<runner>", "exec", dont_inherit=True, optimize=2)
)
BOOT = (
    f"import marshal, os; exec(marshal.loads(os.read(0, {len(RUNNER)})), {{'__name__':"
    " '__main__', '__builtins__': dict(vars(__builtins__))})"
)
"""The boot code has builtins of its own: a snippet may do to its own what it likes."""
ENVIRONMENT = {
    "HOME": "/tmp",
    "USER": "sandbox",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",  # the same snippet prints the same set order, run after run
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
ETC = Path(__file__).with_name("etc")
"""The files of the sandbox's /etc."""
ALTERNATIVES = "/etc/alternatives"
"""Debian's links: /usr/bin/awk is one to awk in here, which is one to the awk that is installed. Inside are links of
the sandbox's own."""
_PR_SET_CHILD_SUBREAPER = 36
UNPRIVILEGED_UID = 65400
"""Base of the uids that a server running as root drops to before bubblewrap starts; one per concurrent call."""


def site_packages() -> list[str]:
    """What a snippet may import besides the standard library: the packages of the server's own environment."""
    paths = sysconfig.get_paths()
    return list(dict.fromkeys(os.path.realpath(paths[name]) for name in ("purelib", "platlib")))


def stage_of(shown: Sequence[str] = ()) -> Stage:
    """What snippets see of the host besides /usr: the interpreter, its packages and `shown`; and of /etc two files of
    our own, by which `localhost` is the sandbox's loopback."""
    stage = Stage([sys.base_prefix, *site_packages(), *shown], uid=UNPRIVILEGED_UID)
    for file in sorted(ETC.iterdir()):
        stage.add_file(str(file), f"/etc/{file.name}")
    return stage


def interpreter_command(
    status_fd: int, workdir: str, limits: Limits, *, boot: str = BOOT, inside: Callable[[str], str] = os.path.realpath
) -> list[str]:
    """The interpreter without `site` (it would cost more than the rest of the start), with the runner as its program.
    `inside`: Stage.inside."""
    options = ["-s", "-S", "-P", "-X", "utf8", "-c", boot, str(status_fd), workdir, limits.rlimits()]
    return [inside(sys.executable), *options, *map(inside, site_packages())]


async def run_job(
    argv: Callable[[int, int], Sequence[str]],
    limits: Limits,
    snippet: Snippet,
    *,
    pass_fds: Sequence[int] = (),
    env: dict[str, str],
    before: bytes = b"",
    warden: bool = False,
    group: ControlGroup | None = None,
) -> Execution:
    """`supervise` an interpreter that reads `before`, the runner and a job from its stdin. Raises SandboxError."""
    if not snippet.fetch:
        return await supervise(
            argv, before + RUNNER + job.pack(snippet), limits, pass_fds=pass_fds, env=env, warden=warden, group=group
        )
    fetch_fd = memory_file(b"")
    try:
        program = before + RUNNER + job.pack(snippet, fetch_fd)
        execution = await supervise(
            argv, program, limits, pass_fds=(*pass_fds, fetch_fd), env=env, warden=warden, group=group
        )
        return replace(execution, **job.unpack(fetch_fd, snippet.fetch)._asdict())
    finally:
        os.close(fetch_fd)


class BwrapSandbox(Sandbox):
    def __init__(
        self,
        limits: Limits = Limits(),
        *,
        seccomp: bytes | None = None,
        proc: bool = True,
        groups: ControlGroups | None = None,
        shown: Sequence[str] = (),
    ) -> None:
        """`seccomp` is a BPF program; `proc` False: without /proc, which some containers do not let one mount;
        `groups`: each call gets one that bounds its memory; `shown`: see WarmSandbox.

        Raises SandboxError with a remedy.
        """
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise SandboxError(
                "bubblewrap is not installed. Run `apt-get install bubblewrap`, or use --isolation none on a machine"
                " that may be harmed."
            )
        self.limits = limits
        self._seccomp = seccomp
        self._groups = groups
        self.isolation = ("bwrap+seccomp" if seccomp else "bwrap") + ("" if proc else ", no /proc")
        self._stage = stage_of(shown)
        self._fixed = [*root_file_system(bwrap, self._stage, limits, proc=proc)]
        become_subreaper()
        self._free_uids = list(range(UNPRIVILEGED_UID, UNPRIVILEGED_UID + 100))

    async def execute(self, snippet: Snippet, limits: Limits) -> Execution:
        drop: list[str] = []
        uid = None
        if os.geteuid() == 0:
            uid = self._free_uids.pop()
            drop = ["/usr/bin/setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs", "--"]
        fds = [memory_file(self._seccomp)] if self._seccomp else []

        def argv(status_fd: int, info_fd: int) -> Sequence[str]:
            options = ["--json-status-fd", str(info_fd), *(["--seccomp", str(fds[0])] if fds else [])]
            return [
                *drop,
                *self._fixed,
                *options,
                "--",
                *interpreter_command(status_fd, "/tmp", limits, inside=self._stage.inside),
            ]

        try:
            with own_group(self._groups, limits) as group:
                return await run_job(argv, limits, snippet, pass_fds=fds, env={}, group=group)
        finally:
            for fd in fds:
                os.close(fd)
            if uid is not None:
                self._free_uids.append(uid)

    async def close(self) -> None:
        if self._groups is not None:
            self._groups.close()
        await asyncio.to_thread(self._stage.close)


@contextmanager
def own_group(groups: ControlGroups | None, limits: Limits) -> Iterator[ControlGroup | None]:
    """One call's control group, where there are any. Raises SandboxError."""
    if groups is None:
        yield None
        return
    try:
        group = groups.new(limits.memory_bytes)
    except OSError as e:
        raise SandboxError(f"no control group for a call: {e}") from e
    try:
        yield group
    finally:
        group.remove()


def become_subreaper() -> None:
    """The init of a container whose bubblewrap ended first becomes our child: we can wait for it, and no zombie stays
    where the host has no reaping init."""
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise SandboxError("prctl(PR_SET_CHILD_SUBREAPER) failed: the kernel is older than 3.4.")


def root_file_system(
    bwrap: str, stage: Stage, limits: Limits, *, proc: bool = True, hidden: Sequence[str] = ()
) -> list[str]:
    """`hidden`: directories of the host that are empty inside where they would be seen, as below site-packages."""
    size = str(limits.file_bytes)
    args = [
        bwrap,
        "--unshare-user",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
    ]
    args += ["--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL", "--hostname", "sandbox"]
    args += ["--ro-bind", "/usr", "/usr"]
    for link in ("/bin", "/lib", "/lib64", "/sbin"):
        if os.path.islink(link):
            args += ["--symlink", os.readlink(link), link]
        elif os.path.isdir(link):
            args += ["--ro-bind", link, link]
    for parent in dict.fromkeys(
        str(p)
        for t in ("/dev/shm", f"{ALTERNATIVES}/awk", *(t for _, t in stage.mounts))
        for p in reversed(Path(t).parents[:-1])
    ):
        # left to bubblewrap they are 0700, and warm children have another uid
        args += ["--perms", "0755", "--dir", parent]
    for name, program in _alternatives():
        args += ["--symlink", program, f"{ALTERNATIVES}/{name}"]
    for source, target in stage.mounts:
        args += ["--ro-bind", source, target]
    for path in (stage.inside(directory) for directory in hidden):
        if any(f"{path}/".startswith(f"{target}/") for target in ("/usr", *(t for _, t in stage.mounts))):
            args += ["--tmpfs", path, "--remount-ro", path]
    if not any(target.startswith("/mnt/") for _, target in stage.mounts):
        args += ["--symlink", "/tmp", "/mnt"]  # where code written for SandboxFusion leaves its files
    if proc:
        args += ["--proc", "/proc"]
    for device in ("null", "full", "random", "urandom"):
        args += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    # reads as zeros too, and cannot be mapped: shared pages of /dev/zero are in nobody's account
    args += ["--dev-bind", "/dev/full", "/dev/zero"]
    args += [
        "--symlink", "/proc/self/fd", "/dev/fd", "--size", size, "--tmpfs", "/dev/shm", "--size", size,
        "--tmpfs", "/tmp", "--remount-ro", "/",
    ]  # fmt: skip
    for name, value in {
        **ENVIRONMENT,
        "PATH": f"{stage.inside(sys.base_prefix)}/bin:/usr/local/bin:/usr/bin:/bin",
    }.items():
        args += ["--setenv", name, value]
    return args


def _alternatives() -> Iterator[tuple[str, str]]:
    """(name, program) of those that lead to programs."""
    with suppress(OSError):  # another distribution
        for name in sorted(os.listdir(ALTERNATIVES)):
            link = f"{ALTERNATIVES}/{name}"
            program = os.readlink(link) if os.path.islink(link) else ""
            if program.startswith(("/bin/", "/usr/bin/", "/usr/sbin/")):
                yield name, program
