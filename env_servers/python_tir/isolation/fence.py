"""A sandbox for containers without user namespaces, where bubblewrap cannot work: Landlock, seccomp and rlimits.

It needs no root. It is weaker than `bwrap`, so it is used only where that fails, with a warning at start and
"landlock+seccomp" in /health. It needs Linux 6.12 or later.

Covered
- Files: the snippet reads /usr, the interpreter and its site-packages, and writes one directory of its own, which is
  removed after the call. No other file can be opened, listed, made, moved, removed, or given other rights, times or
  attributes.
- No sockets except pairs; no signal, trace or priority for a process outside; no System V objects; the same refused
  calls as in `bwrap`.
- Code, input and output go through memory files and pipes. When the call ends, one kill(-1) inside its Landlock domain
  ends every process of it; none can leave that domain.
- A server that runs as root drops to an unprivileged uid, another one for each concurrent call, which bounds its
  processes exactly. Any other server shares one kernel count with all processes of its user: the limit is that count
  plus what the running calls may have, and a call with more than its own share is killed at the next memory check.

Not covered, besides what `bwrap` lists
- Names, sizes and times of host files can be seen, their contents cannot. /proc, /dev/shm and sockets are missing.
- Disk: one file is limited, their sum only by time.
- Locks (flock) on readable files of the host: calls that run at the same time can signal each other with them.
- If the host kills a warden (the parent of the snippet's process) out of memory, the processes of its call stay behind.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ..limits import Limits
from ..sandbox import Execution, Sandbox, SandboxError, Snippet
from .bwrap import (
    ENVIRONMENT,
    RUNNER,
    become_subreaper,
    call_group,
    call_uids,
    interpreter_command,
    run_job,
    site_packages,
)
from .call_directory import call_directory
from .control_group import ControlGroups
from .job import compiled
from .stage import reachable

NEEDED_ABI = 6
"""Version of Landlock that confines signals and abstract sockets: Linux 6.12."""
_HERE = Path(__file__).parent


class FenceSandbox(Sandbox):
    """Runs each call in a fresh interpreter, confined by Landlock and seccomp."""

    isolation = "landlock+seccomp"

    def __init__(
        self,
        limits: Limits,
        *,
        seccomp: bytes | None,
        groups: ControlGroups | None,
        extra_directories: Sequence[str],
    ) -> None:
        """Create the sandbox.

        Args:
            limits: Default limits of a call.
            seccomp: A BPF program of `filter_program(namespaces=False)`.
            groups: As in BwrapSandbox.
            extra_directories: As in WarmSandbox.

        Raises:
            SandboxError: The kernel, libseccomp or the location of the interpreter do not allow it.
        """
        abi = ctypes.CDLL(None).syscall(444, None, 0, 1)  # landlock_create_ruleset, which answers with the version
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
        readable = [sys.base_prefix, *site_packages(), *extra_directories]
        if self._as_root and (hidden := [path for path in readable if not reachable(path)]):
            raise SandboxError(
                f"an unprivileged user cannot enter {hidden[0]}."
                " Install Python elsewhere, or run the server as its owner."
            )
        options = {
            "kernel": compiled(_HERE.parent / "warm" / "kernel.py"),
            "seccomp": seccomp,
            "readable": ["/usr", "/bin", "/lib", "/lib64", *readable],
            "runner": len(RUNNER),
        }
        packed = marshal.dumps(options)
        fenced = marshal.dumps(compiled(_HERE / "fenced.py"))
        self._program = fenced + len(packed).to_bytes(4, "little") + packed
        self._boot = f"import marshal, os; exec(marshal.loads(os.read(0, {len(fenced)})))"
        become_subreaper()
        self._free_uids = call_uids()
        self._running = 0

    async def execute(self, snippet: Snippet, limits: Limits) -> Execution:
        """Run a snippet in a directory of its own. Raises SandboxError."""
        async with call_directory() as workdir:
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
                # Whatever is written to `info_fd` is believed to come from bubblewrap, so the snippet must not have it.
                return [
                    *drop,
                    *interpreter_command(
                        status_fd, workdir, bounded, boot=f"import os; os.close({info_fd}); {self._boot}"
                    ),
                ]

            env = {**ENVIRONMENT, "HOME": workdir, "TMPDIR": workdir, "PATH": "/usr/bin:/bin"}
            self._running += 1
            try:
                with call_group(self._groups, limits) as group:
                    return await run_job(argv, limits, snippet, env=env, before=self._program, warden=True, group=group)
            finally:
                self._running -= 1
                if uid is not None:
                    self._free_uids.append(uid)

    async def close(self) -> None:
        """Remove the control groups."""
        if self._groups is not None:
            self._groups.close()


def tasks_of(uid: int) -> int:
    """Return the number of threads of a user's processes, as far as this container sees them. `fenced` finds out about
    others."""
    total = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # ended meanwhile
            status = Path(f"/proc/{pid}/status").read_bytes()
            if int(status.partition(b"\nUid:")[2].split(maxsplit=1)[0]) == uid:
                total += int(status.partition(b"\nThreads:")[2].split(maxsplit=1)[0])
    return total
