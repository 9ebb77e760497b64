"""A sandbox that runs each call in one fresh bubblewrap container with one fresh interpreter.

Covered
- Namespaces: user, pid, mount, network (with its own loopback and nothing else), ipc, uts, cgroup. An unprivileged uid
  without capabilities.
- Files: a read-only root with /usr, the interpreter and its site-packages; /tmp and /dev/shm are size-limited tmpfs of
  this call only. Nothing else of the host: no /etc except two files of this package (`localhost`), no /home, no /sys.
  The environment is empty except for what is set here.
- Code comes in an anonymous memory file, output goes out through pipes: other requests and other users see neither.
- rlimits per process, a memory cap over all processes of the call, output caps, a wall clock; see `limits`. When the
  call ends, by itself or not, every process of its pid namespace is dead before the result is returned.
- seccomp (if libseccomp is installed; /health says "bwrap+seccomp"): no nested namespaces, mounts, ptrace, keyrings,
  io_uring, bpf, perf; no memory that outlives its mappings; sockets AF_UNIX, TCP and UDP only. See `seccomp`.

Not covered
- Kernel bugs reachable through the allowed system calls.
- Without a control group, memory and the number of files are checked every quarter second: a burst can exceed the
  limit before it is killed. `memory` says what counts. CPU is bounded by the wall clock times the number of cores.
- The output of a snippet is believed: it can print anything and exit with any code.
- /proc/self/mountinfo names the directories of the host that are bound. Other calls see a flock() on a read-only file.
- Timing: snippets can tell that others are running on the machine.
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

RUNNER = marshal.dumps(job.compiled(Path(__file__).with_name("runner.py")))
BOOT = (
    f"import marshal, os; exec(marshal.loads(os.read(0, {len(RUNNER)})), {{'__name__':"
    " '__main__', '__builtins__': dict(vars(__builtins__))})"
)
"""Program that reads the runner from stdin and runs it. It gives the runner its own copy of the builtins: a snippet may
change those of its own `__main__` as it likes."""
ENVIRONMENT = {
    "HOME": "/tmp",
    "USER": "sandbox",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",  # the same snippet prints the same set order, run after run
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",  # each further arena takes 64 MiB of the address space, and threads want one each
}
ETC = Path(__file__).with_name("etc")
"""Directory with the files of the sandbox's /etc."""
ALTERNATIVES = "/etc/alternatives"
"""Directory of Debian's alternatives: /usr/bin/awk links to awk in it, which links to the installed awk. The sandbox
gets links of its own there."""
_PR_SET_CHILD_SUBREAPER = 36
UNPRIVILEGED_UID = 65400
"""Uid that a server running as root drops to before bubblewrap starts. Concurrent calls have others beside it."""


def call_uids() -> list[int]:
    """Return the uids of concurrent calls, one for each: more than a server has workers.

    All are below 65,534: a container may map no more.
    """
    return list(range(UNPRIVILEGED_UID - 4000, UNPRIVILEGED_UID + 100))


def site_packages() -> list[str]:
    """Return the directories of packages that a snippet may import: those of the server's own environment."""
    paths = sysconfig.get_paths()
    return list(dict.fromkeys(os.path.realpath(paths[name]) for name in ("purelib", "platlib")))


def create_stage(extra_directories: Sequence[str]) -> Stage:
    """Return what snippets see of the host besides /usr.

    This is the interpreter, its packages, `extra_directories`, and two files in /etc by which `localhost` is the
    sandbox's loopback.
    """
    stage = Stage([sys.base_prefix, *site_packages(), *extra_directories])
    for file in sorted(ETC.iterdir()):
        stage.add_file(str(file), f"/etc/{file.name}")
    return stage


def interpreter_command(
    status_fd: int,
    workdir: str,
    limits: Limits,
    *,
    boot: str = BOOT,
    sandbox_path: Callable[[str], str] = os.path.realpath,
) -> list[str]:
    """Return the command of an interpreter that runs the runner.

    It starts without `site`, which would take longer than everything else at start.

    Args:
        status_fd: Descriptor of the status pipe.
        workdir: Working directory of the snippet.
        limits: Limits that the runner sets.
        boot: Program of the interpreter.
        sandbox_path: Returns the path inside the sandbox of a path on the host (`Stage.sandbox_path`).
    """
    options = ["-s", "-S", "-P", "-X", "utf8", "-c", boot, str(status_fd), workdir, limits.rlimits()]
    return [sandbox_path(sys.executable), *options, *map(sandbox_path, site_packages())]


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
    """Run a snippet in a new interpreter that reads `before`, the runner and the job from its stdin.

    Args:
        argv: Returns the command, from the descriptors of the status pipe and of bubblewrap's information.
        limits: Limits of the call.
        snippet: What is run.
        pass_fds: Descriptors that the command inherits.
        env: Environment variables of the command.
        before: A program that runs before the runner.
        warden: As in `supervise`.
        group: As in `supervise`.

    Raises:
        SandboxError: The sandbox failed.
    """
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
    """Runs each call in a fresh bubblewrap container."""

    def __init__(
        self,
        limits: Limits = Limits(),
        *,
        seccomp: bytes | None = None,
        proc: bool = True,
        groups: ControlGroups | None = None,
        extra_directories: Sequence[str] = (),
    ) -> None:
        """Create the sandbox.

        Args:
            limits: Default limits of a call.
            seccomp: A BPF program of `filter_program`; None: no system calls are refused.
            proc: False: without /proc, which some containers do not allow to be mounted.
            groups: Control groups; each call gets one that bounds its memory.
            extra_directories: As in WarmSandbox.

        Raises:
            SandboxError: bubblewrap is missing. The message has a remedy.
        """
        bwrap = find_bwrap()
        self.limits = limits
        self._seccomp = seccomp
        self._groups = groups
        self.isolation = ("bwrap+seccomp" if seccomp else "bwrap") + ("" if proc else ", no /proc")
        self._stage = create_stage(extra_directories)
        self._fixed = [*root_file_system(bwrap, self._stage, limits, proc=proc)]
        become_subreaper()
        self._free_uids = call_uids()

    async def execute(self, snippet: Snippet, limits: Limits) -> Execution:
        """Run a snippet in a container. Raises SandboxError."""
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
                *interpreter_command(status_fd, "/tmp", limits, sandbox_path=self._stage.sandbox_path),
            ]

        try:
            with call_group(self._groups, limits) as group:
                return await run_job(argv, limits, snippet, pass_fds=fds, env={}, group=group)
        finally:
            for fd in fds:
                os.close(fd)
            if uid is not None:
                self._free_uids.append(uid)

    async def close(self) -> None:
        """Remove the control groups and mounts."""
        if self._groups is not None:
            self._groups.close()
        await asyncio.to_thread(self._stage.close)


@contextmanager
def call_group(groups: ControlGroups | None, limits: Limits) -> Iterator[ControlGroup | None]:
    """Hold a control group for one call; None if the server has no groups. Raises SandboxError."""
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


def find_bwrap() -> str:
    """Return the path of bubblewrap.

    Raises:
        SandboxError: It is not installed. The message has a remedy.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxError(
            "bubblewrap is not installed. Run `apt-get install bubblewrap`, or use --isolation none on a machine"
            " that may be harmed."
        )
    return bwrap


def become_subreaper() -> None:
    """Become the parent of orphans: the init of a container whose bubblewrap has ended first can then be waited for.

    Otherwise it would stay as a zombie on a host without an init that collects them.

    Raises:
        SandboxError: The kernel refuses it.
    """
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise SandboxError("prctl(PR_SET_CHILD_SUBREAPER) failed: the kernel is older than 3.4.")


def root_file_system(
    bwrap: str, stage: Stage, limits: Limits, *, proc: bool = True, hidden: Sequence[str] = ()
) -> list[str]:
    """Return the bubblewrap command with the options that build the sandbox's file system and environment.

    Args:
        bwrap: Path of bubblewrap.
        stage: What the sandbox shows of the host.
        limits: Limits, for the sizes of /tmp and /dev/shm.
        proc: Whether /proc is mounted.
        hidden: Directories of the host that are empty inside if they would be seen, for example below site-packages.
    """
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
    mount_targets = [target for _, target in stage.mounts]
    parents = [
        str(parent)
        for target in ("/dev/shm", f"{ALTERNATIVES}/awk", *mount_targets)
        for parent in reversed(Path(target).parents[:-1])
    ]
    for parent in dict.fromkeys(parents):
        # bubblewrap itself would make them 0700, and warm children have another uid
        args += ["--perms", "0755", "--dir", parent]
    for name, program in _alternatives():
        args += ["--symlink", program, f"{ALTERNATIVES}/{name}"]
    for source, target in stage.mounts:
        args += ["--ro-bind", source, target]
    for path in (stage.sandbox_path(directory) for directory in hidden):
        if any(f"{path}/".startswith(f"{target}/") for target in ("/usr", *mount_targets)):
            args += ["--tmpfs", path, "--remount-ro", path]
    if not any(target.startswith("/mnt/") for target in mount_targets):
        args += ["--symlink", "/tmp", "/mnt"]  # where code written for SandboxFusion leaves its files
    if proc:
        args += ["--proc", "/proc"]
    for device in ("null", "full", "random", "urandom"):
        args += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    # /dev/full reads as zeros too and cannot be mapped; shared pages of /dev/zero would not count as anyone's memory
    args += ["--dev-bind", "/dev/full", "/dev/zero"]
    args += [
        "--symlink", "/proc/self/fd", "/dev/fd", "--size", size, "--tmpfs", "/dev/shm", "--size", size,
        "--tmpfs", "/tmp", "--remount-ro", "/",
    ]  # fmt: skip
    for name, value in {
        **ENVIRONMENT,
        "PATH": f"{stage.sandbox_path(sys.base_prefix)}/bin:/usr/local/bin:/usr/bin:/bin",
    }.items():
        args += ["--setenv", name, value]
    return args


def _alternatives() -> Iterator[tuple[str, str]]:
    """Yield name and program of the alternatives that lead to installed programs."""
    with suppress(OSError):  # another distribution
        for name in sorted(os.listdir(ALTERNATIVES)):
            link = f"{ALTERNATIVES}/{name}"
            program = os.readlink(link) if os.path.islink(link) else ""
            if program.startswith(("/bin/", "/usr/bin/", "/usr/sbin/")):
                yield name, program
