"""A memory limit that the kernel keeps to the byte, over all processes of a slot or a call together.

    version 2   if the server was started in a group that it has for itself. It is divided: a leaf for the server, one
                group for each slot
                    systemd-run [--user] --scope -p Delegate=yes -p MemoryMax=16G python -m env_servers.python_tir ...
    version 1   below the group that the server is in, if the memory hierarchy may be written: as root, in a container
                that shows it

A version 2 group that holds other processes cannot be divided without moving them, so it is left alone. Processes of
others, and limits that exist, are never touched. Where no group can be had, `memory` checks at intervals, which a burst
can outrun; a server reports that at start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from openrlhf_tir.machine.control_group import group_directory

SLACK_BYTES = 32 << 20
"""Bytes that a group may have above the call's limit. They cover what its slot holds itself, and let `memory` see a
creeping allocation first, which spares the slot."""
NONE = (
    "no control group can be used here: the memory of all processes of a snippet together is checked four times a"
    " second, so a burst can pass the limit between two checks"
)
_SERVER = "server"
_SLOT = "tir-slot"
_ENTER = 'echo 0 > "$0" && exec "$@"'


@dataclass(frozen=True, slots=True)
class _Files:
    """The names of the same files in a version of control groups.

    Attributes:
        limit: The limit of memory.
        with_swap: The limit of memory and swap together, or, if `swap_alone`, of swap.
        events: The counters of kills.
    """

    limit: str
    with_swap: str
    swap_alone: bool
    events: str


V1 = _Files("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", False, "memory.oom_control")
V2 = _Files("memory.max", "memory.swap.max", True, "memory.events")


class ControlGroup:
    """The group of one slot or one call."""

    def __init__(self, path: Path, memory_bytes: int, files: _Files) -> None:
        """Create the group. Raises OSError."""
        self._path = path
        self._files = files
        self._memory_bytes = memory_bytes
        path.mkdir()
        self._write(memory_bytes)
        if files.swap_alone:
            with suppress(OSError):  # a kernel without swap accounting has no such file
                (path / files.with_swap).write_text("0")

    def set_limit(self, memory_bytes: int) -> None:
        """Set another limit.

        The old one stays if the kernel cannot free the file cache that an earlier call has left in the group.
        """
        if memory_bytes != self._memory_bytes:
            with suppress(OSError):
                self._write(memory_bytes)
                self._memory_bytes = memory_bytes

    def _write(self, memory_bytes: int) -> None:
        """Write the limits, in the order that keeps the limit with swap at or above the one without, as the kernel
        demands."""
        limit = self._path / self._files.limit
        together = self._path / self._files.with_swap
        text = str(memory_bytes + SLACK_BYTES)
        grows = memory_bytes > self._memory_bytes
        if not grows or self._files.swap_alone:
            limit.write_text(text)
        if not self._files.swap_alone:
            with suppress(OSError):
                together.write_text(text)
            if grows:
                limit.write_text(text)

    def add(self, pids: Iterable[int]) -> None:
        """Move processes into the group, with everything that they fork from now on."""
        for pid in pids:
            (self._path / "cgroup.procs").write_text(str(pid))

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return a command that enters the group before it runs `argv`."""
        return ["/bin/sh", "-c", _ENTER, str(self._path / "cgroup.procs"), *argv]

    def kills(self) -> int:
        """Return how many of its processes the kernel has killed for their memory."""
        with suppress(OSError, ValueError):
            fields = (self._path / self._files.events).read_text().split()
            return int(fields[fields.index("oom_kill") + 1])
        return 0

    def remove(self) -> None:
        """Remove the group, after its processes have ended."""
        with suppress(OSError):  # the kernel may keep it for a moment: `ControlGroups.close` tries again
            self._path.rmdir()


class ControlGroups:
    """The groups of one server, below the group that it was started in."""

    def __init__(self, directory: Path, files: _Files = V2) -> None:
        self._directory = directory
        self._files = files
        self._count = 0

    @classmethod
    def delegated(cls, proc: Path = Path("/proc/self")) -> ControlGroups | None:
        """Return the groups of this server; None if it may not create any."""
        return cls._divided(proc) or cls._below(proc)

    @classmethod
    def _divided(cls, proc: Path) -> ControlGroups | None:
        """Divide a version 2 group that this process has for itself; None if there is none."""
        directory = group_directory("cgroup2", "", proc)
        if directory is None:
            return None
        try:
            if (directory / "cgroup.procs").read_text().split() != [str(os.getpid())] or "memory" not in (
                directory / "cgroup.controllers"
            ).read_text().split():
                return None
            leaf = directory / _SERVER
            leaf.mkdir(exist_ok=True)
            # a group with processes of its own cannot limit groups below it
            (leaf / "cgroup.procs").write_text(str(os.getpid()))
            (directory / "cgroup.subtree_control").write_text("+memory")
        except OSError:  # no permission to write
            return None
        return cls(directory)

    @classmethod
    def _below(cls, proc: Path) -> ControlGroups | None:
        """Return groups below this process's version 1 group; None if it may not be written."""
        directory = group_directory("cgroup", "memory", proc)
        if directory is None:
            return None
        groups = cls(directory, V1)
        groups._remove_stale()
        try:
            groups.new(0).remove()
        except OSError:  # no permission to write
            return None
        return groups

    def new(self, memory_bytes: int) -> ControlGroup:
        """Create a group with a limit. Raises OSError."""
        while True:
            self._count += 1
            path = self._directory / f"{_SLOT}-{os.getpid()}-{self._count}"
            with suppress(FileExistsError):  # of another sandbox of this process, or the kernel still keeps it
                return ControlGroup(path, memory_bytes, self._files)

    def close(self) -> None:
        """Remove the groups that are left."""
        for directory in self._directory.glob(f"{_SLOT}-{os.getpid()}-*"):
            with suppress(OSError):
                directory.rmdir()

    def _remove_stale(self) -> None:
        """Remove the groups of servers that were killed, and of an earlier process with this process id."""
        for directory in self._directory.glob(f"{_SLOT}-*-*"):
            pid = directory.name.split("-")[2]
            if pid == str(os.getpid()) or not Path("/proc", pid).exists():
                with suppress(OSError):  # its processes have not ended
                    directory.rmdir()


def delegated_groups() -> ControlGroups | None:
    """Return the groups of this server. If there are none, print a line on stderr and return None."""
    groups = ControlGroups.delegated()
    if groups is None:
        print(NONE, file=sys.stderr)
    return groups
