"""ControlGroup: a memory limit that the kernel keeps to the byte, over all processes of a slot or a call together.

    version 2   where the server was started in a group that it has for itself, which is divided: a leaf for the server,
                one group for each slot
                    systemd-run [--user] --scope -p Delegate=yes -p MemoryMax=16G python -m env_servers.python_tir ...
    version 1   below the group that the server is in, where the memory hierarchy may be written: as root, in a
                container that shows it

A version 2 group that holds other processes cannot be divided without moving them, so it is left alone. Nobody else's
process, and no limit that is there, is ever touched. Where no group can be had `memory` looks at intervals, which a
burst outruns; a server says so at start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SLACK_BYTES = 32 << 20
"""Above the call's limit: what its slot holds itself, and so that a creeping allocation is seen by `memory` first,
which spares the slot."""
NONE = (
    "no control group can be had here: what all processes of a snippet hold together is looked at four times a second,"
    " so a burst can pass the limit meanwhile"
)
_SERVER = "server"
_SLOT = "tir-slot"
_ENTER = 'echo 0 > "$0" && exec "$@"'


@dataclass(frozen=True, slots=True)
class _Files:
    """A version's names for the same things."""

    limit: str
    with_swap: str
    """Memory and swap together, or, where `swap_alone`, swap."""
    swap_alone: bool
    events: str


V1 = _Files("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", False, "memory.oom_control")
V2 = _Files("memory.max", "memory.swap.max", True, "memory.events")


class ControlGroup:
    """One slot's or one call's, from its start to its end."""

    def __init__(self, path: Path, memory_bytes: int, files: _Files = V2) -> None:
        """Raises OSError."""
        self._path = path
        self._files = files
        self._memory_bytes = memory_bytes
        path.mkdir()
        self._write(memory_bytes)
        if files.swap_alone:
            with suppress(OSError):  # a kernel without swap accounting has no such file
                (path / files.with_swap).write_text("0")

    def bound(self, memory_bytes: int) -> None:
        """Another limit; kept as it was where the kernel cannot free what an earlier call left of its files' cache."""
        if memory_bytes != self._memory_bytes:
            with suppress(OSError):
                self._write(memory_bytes)
                self._memory_bytes = memory_bytes

    def _write(self, memory_bytes: int) -> None:
        """The limit with swap, where the kernel counts swap, may never be below the one without."""
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
        """These and all that they fork from now on."""
        for pid in pids:
            (self._path / "cgroup.procs").write_text(str(pid))

    def command(self, argv: Sequence[str]) -> list[str]:
        """`argv` as a command whose process is in the group before it begins."""
        return ["/bin/sh", "-c", _ENTER, str(self._path / "cgroup.procs"), *argv]

    def kills(self) -> int:
        """How many of its processes the kernel has killed for their memory."""
        with suppress(OSError, ValueError):
            words = (self._path / self._files.events).read_text().split()
            return int(words[words.index("oom_kill") + 1])
        return 0

    def remove(self) -> None:
        """When its processes have ended."""
        with suppress(OSError):  # kept by the kernel for a moment longer: `ControlGroups.close` tries again
            self._path.rmdir()


class ControlGroups:
    """Those of one server, below the group that it was started in."""

    def __init__(self, directory: Path, files: _Files = V2) -> None:
        self._directory = directory
        self._files = files
        self._count = 0

    @classmethod
    def delegated(cls, proc: Path = Path("/proc/self")) -> ControlGroups | None:
        """None where there is none for this server alone."""
        return cls._divided(proc) or cls._below(proc)

    @classmethod
    def _divided(cls, proc: Path) -> ControlGroups | None:
        directory = _own_group(proc, "cgroup2", "")
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
        except OSError:  # not ours to write
            return None
        return cls(directory)

    @classmethod
    def _below(cls, proc: Path) -> ControlGroups | None:
        directory = _own_group(proc, "cgroup", "memory")
        if directory is None:
            return None
        groups = cls(directory, V1)
        groups._remove_stale()
        try:
            groups.new(0).remove()
        except OSError:  # not ours to write
            return None
        return groups

    def new(self, memory_bytes: int) -> ControlGroup:
        """Raises OSError."""
        self._count += 1
        return ControlGroup(self._directory / f"{_SLOT}-{os.getpid()}-{self._count}", memory_bytes, self._files)

    def close(self) -> None:
        for left in self._directory.glob(f"{_SLOT}-{os.getpid()}-*"):
            with suppress(OSError):
                left.rmdir()

    def _remove_stale(self) -> None:
        """Remove the groups of servers that were killed, and of one that had our process id."""
        for left in self._directory.glob(f"{_SLOT}-*-*"):
            pid = left.name.split("-")[2]
            if pid == str(os.getpid()) or not Path("/proc", pid).exists():
                with suppress(OSError):  # its processes have not ended
                    left.rmdir()


def groups_or_said() -> ControlGroups | None:
    """This server's; one line on stderr where there are none."""
    groups = ControlGroups.delegated()
    if groups is None:
        print(NONE, file=sys.stderr)
    return groups


def _own_group(proc: Path, kind: str, controller: str) -> Path | None:
    """The directory of this process's group in that hierarchy; None where it is not mounted. `controller` "": version
    2's, which has them all."""
    path = None
    for line in (proc / "cgroup").read_text().splitlines():
        _, controllers, its_path = line.split(":", 2)
        if controllers == controller or (controller and controller in controllers.split(",")):
            path = its_path
    for line in (proc / "mountinfo").read_text().splitlines():
        fields, _, of_kind = line.partition(" - ")
        words = of_kind.split()
        if path is not None and words[0] == kind and (not controller or controller in words[2].split(",")):
            _, _, _, root, mount, *_ = fields.split()
            return Path(mount) / os.path.relpath(path, root) if path.startswith(root) else None
    return None
