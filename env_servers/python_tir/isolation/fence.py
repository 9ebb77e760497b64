"""FenceSandbox: isolation for containers without user namespaces, where bubblewrap cannot work. Landlock, seccomp,
rlimits; no root needed.

Weaker than `bwrap`, so only used where that fails, and said so: a warning at start, "landlock+seccomp" in /health.
Linux 6.12 or later.

Covered
- Files: reads /usr, the interpreter and its site-packages; writes one directory of its own, gone after the call. No
  other file can be opened, listed, made, moved, removed, or given other rights, times or attributes.
- No sockets but pairs; no signal, trace or priority for a process outside; no System V objects; the same refused calls
  as in `bwrap`.
- Code, input and output go through memory files and pipes. When the call ends, one kill(-1) inside its Landlock domain
  ends every process of it; none can leave that domain.
- A server that runs as root drops to an unprivileged uid, another one for each concurrent call, which bounds its
  processes exactly. Any other shares one kernel count with all of its user's processes: the limit is that count and
  what the running calls may have, and a call with more than its own share is killed at the next look at its memory.

Not covered, besides what `bwrap` lists
- Names, sizes and times of host files can be seen, their contents not. /proc, /dev/shm and sockets are missing.
- Disk: one file is limited, their sum only by time.
- Locks (flock) on readable files of the host: calls that run at the same time can signal each other so.
- A warden (the parent of the snippet's process) that the host kills out of memory leaves the processes of its call
  behind.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ..limits import Limits
from ..sandbox import Execution, Sandbox, SandboxError, Snippet
from .bwrap import (
    ENVIRONMENT,
    RUNNER,
    UNPRIVILEGED_UID,
    become_subreaper,
    interpreter_command,
    own_group,
    run_job,
    site_packages,
)
from .control_group import ControlGroups
from .stage import reachable

NEEDED_ABI = 6
"""Landlock that confines signals and abstract sockets: Linux 6.12."""
_HERE = Path(__file__).parent


def _compiled(path: Path) -> bytes:
    return marshal.dumps(compile(path.read_text(), f"<{path.stem}>", "exec", dont_inherit=True, optimize=2))


class FenceSandbox(Sandbox):
    isolation = "landlock+seccomp"

    def __init__(
        self,
        limits: Limits = Limits(),
        *,
        seccomp: bytes | None,
        groups: ControlGroups | None = None,
        shown: Sequence[str] = (),
    ) -> None:
        """`seccomp` is a BPF program made for it; `groups`, `shown`: see BwrapSandbox.

        Raises SandboxError where the kernel, libseccomp or the interpreter's place do not allow it.
        """
        abi = ctypes.CDLL(None).syscall(444, None, 0, 1)
        if abi < NEEDED_ABI:
            raise SandboxError(
                f"the kernel's Landlock has version {max(abi, 0)}, {NEEDED_ABI} is needed."
                " Use Linux 6.12 or later with Landlock enabled."
            )
        if seccomp is None:
            raise SandboxError("libseccomp is missing. Run `apt-get install libseccomp2`.")
        self.limits = limits
        self._groups = groups
        self._as_root = os.geteuid() == 0
        places = [sys.base_prefix, *site_packages(), *shown]
        if self._as_root and (hidden := [p for p in places if not reachable(p)]):
            raise SandboxError(
                f"an unprivileged user cannot enter {hidden[0]}."
                " Install Python elsewhere, or run the server as its owner."
            )
        kernel = (_HERE.parent / "warm" / "kernel.py").read_text()
        options = {
            "kernel": compile(kernel, "<kernel>", "exec", dont_inherit=True, optimize=2),
            "seccomp": seccomp,
            "readable": ["/usr", "/bin", "/lib", "/lib64", *places],
            "runner": len(RUNNER),
        }
        packed = marshal.dumps(options)
        fenced = _compiled(_HERE / "fenced.py")
        self._program = fenced + len(packed).to_bytes(4, "little") + packed
        self._boot = f"import marshal, os; exec(marshal.loads(os.read(0, {len(fenced)})))"
        become_subreaper()
        self._free_uids = list(range(UNPRIVILEGED_UID, UNPRIVILEGED_UID + 100))
        self._running = 0

    async def execute(self, snippet: Snippet, limits: Limits) -> Execution:
        with tempfile.TemporaryDirectory(prefix="tir-", ignore_cleanup_errors=True) as workdir:
            drop: list[str] = []
            uid = None
            bounded = limits
            if self._as_root:
                uid = self._free_uids.pop()
                os.chown(workdir, uid, uid)
                drop = [
                    "/usr/bin/setpriv",
                    f"--reuid={uid}",
                    f"--regid={uid}",
                    "--clear-groups",
                    "--bounding-set=-all",
                    "--no-new-privs",
                    "--",
                ]
            else:
                bounded = replace(limits, processes=tasks_of(os.getuid()) + limits.processes * (self._running + 1))

            def argv(status_fd: int, info_fd: int) -> Sequence[str]:
                # The other end of `info_fd` believes what it reads, and nothing here has anything to say on it.
                return [
                    *drop,
                    *interpreter_command(
                        status_fd, workdir, bounded, boot=f"import os; os.close({info_fd}); {self._boot}"
                    ),
                ]

            env = {**ENVIRONMENT, "HOME": workdir, "TMPDIR": workdir, "PATH": "/usr/bin:/bin"}
            self._running += 1
            try:
                with own_group(self._groups, limits) as group:
                    return await run_job(argv, limits, snippet, env=env, before=self._program, warden=True, group=group)
            finally:
                self._running -= 1
                if uid is not None:
                    self._free_uids.append(uid)

    async def close(self) -> None:
        if self._groups is not None:
            self._groups.close()


def tasks_of(uid: int) -> int:
    """The threads of a user's processes, as far as this container sees them; `fenced` finds out about the others."""
    total = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # ended meanwhile
            status = Path(f"/proc/{pid}/status").read_bytes()
            if int(status.partition(b"\nUid:")[2].split(maxsplit=1)[0]) == uid:
                total += int(status.partition(b"\nThreads:")[2].split(maxsplit=1)[0])
    return total
