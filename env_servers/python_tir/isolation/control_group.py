"""ControlGroup: a memory limit that the kernel keeps to the byte, for each slot, where the server was started in a control group of its own.

    systemd-run --scope -p Delegate=yes -p MemoryMax=16G python -m env_servers.python_tir ...

It is used when it is version 2, may be written, has the memory controller, and holds no process but this one, which is moved to a leaf of it:
so nobody else's group is ever touched. Everywhere else `memory` looks at intervals, which a burst outruns.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

SLACK_BYTES = 32 << 20
"""Above the call's limit: what its slot holds itself, and so that a creeping allocation is seen by `memory` first, which spares the slot."""
_SERVER = "server"


class ControlGroup:
    """One slot's, from its start to its end."""

    def __init__(self, path: Path, memory_bytes: int) -> None:
        self._path = path
        path.mkdir()
        (path / "memory.max").write_text(str(memory_bytes + SLACK_BYTES))
        with suppress(OSError):  # a kernel without swap accounting has no such file
            (path / "memory.swap.max").write_text("0")

    def add(self, pids: Iterable[int]) -> None:
        """These and all that they fork from now on."""
        for pid in pids:
            (self._path / "cgroup.procs").write_text(str(pid))

    def kills(self) -> int:
        """How many of its processes the kernel has killed for their memory."""
        with suppress(OSError, ValueError):
            words = (self._path / "memory.events").read_text().split()
            return int(words[words.index("oom_kill") + 1])
        return 0

    def remove(self) -> None:
        """When its processes have ended."""
        with suppress(OSError):  # kept by the kernel for a moment longer: `ControlGroups.close` tries again
            self._path.rmdir()


class ControlGroups:
    """Those of one server, below the group that it was started in."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._count = directory, 0

    @classmethod
    def delegated(cls, proc: Path = Path("/proc/self")) -> ControlGroups | None:
        """None where there is none for this server alone."""
        directory = _own_group(proc)
        if directory is None:
            return None
        try:
            if (directory / "cgroup.procs").read_text().split() != [str(os.getpid())] or "memory" not in (directory / "cgroup.controllers").read_text().split():
                return None
            leaf = directory / _SERVER
            leaf.mkdir(exist_ok=True)
            (leaf / "cgroup.procs").write_text(str(os.getpid()))  # a group with processes of its own cannot limit groups below it
            (directory / "cgroup.subtree_control").write_text("+memory")
        except OSError:  # not ours to write
            return None
        return cls(directory)

    def new(self, memory_bytes: int) -> ControlGroup:
        """Raises OSError."""
        self._count += 1
        return ControlGroup(self._directory / f"slot-{os.getpid()}-{self._count}", memory_bytes)

    def close(self) -> None:
        for left in self._directory.glob(f"slot-{os.getpid()}-*"):
            with suppress(OSError):
                left.rmdir()


def _own_group(proc: Path) -> Path | None:
    """The directory of this process's version 2 group; None where no such hierarchy is mounted."""
    path = next((line[3:] for line in (proc / "cgroup").read_text().splitlines() if line.startswith("0::/")), None)
    for line in (proc / "mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        if path is not None and kind.startswith("cgroup2 "):
            _, _, _, root, mount, *_ = fields.split()
            return Path(mount) / os.path.relpath(path, root) if path.startswith(root) else None
    return None
