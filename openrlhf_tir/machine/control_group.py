"""The control groups that this process is in, and what they allow it of the node's memory and cores.

A container shows /proc/meminfo and the cores of its node; its limits are those of its control group. With Slurm and
systemd the limit is often not of the group that a process is in but of one above it. In version 1 each controller has
groups of its own. The standard library alone is imported.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc/self")


class _Files(NamedTuple):
    """The names of the same files of memory in a version of control groups.

    Attributes:
        limit: The limit in bytes, or "max".
        used: The bytes in use.
        cache: The line of memory.stat with the file cache that the kernel can take back at once.
    """

    limit: str
    used: str
    cache: str


V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = _Files("memory.max", "memory.current", "inactive_file")


def group_directory(kind: str, controller: str, proc: Path = PROC) -> Path | None:
    """Return the directory of this process's group in a hierarchy; None if it is not mounted here.

    Args:
        kind: File system of the hierarchy: "cgroup2" or "cgroup".
        controller: Controller of a version 1 hierarchy; "" for version 2, which has them all.
        proc: /proc/self, replaced in tests.
    """
    found = _place(kind, controller, proc)
    return found and found[1]


@cache
def groups(controller: str, proc: Path = PROC) -> tuple[Path, ...]:
    """Return the directories of this process's group with a controller and of those above it, the innermost first.

    A controller is in one hierarchy only: if version 1 has it, version 2 does not. () where there are no control
    groups.

    Args:
        controller: "memory" or "cpu".
        proc: /proc/self, replaced in tests.
    """
    with suppress(OSError, ValueError, IndexError):
        if found := _place("cgroup", controller, proc) or _place("cgroup2", "", proc):
            mount, directory = found
            inner = directory or mount
            return (inner, *(above for above in inner.parents if above.is_relative_to(mount)))
    return ()


def memory(proc: Path = PROC) -> tuple[int, int] | None:
    """Return (bytes in use, limit in bytes) of the group with the smallest limit; None if no group has one.

    File cache that the kernel can take back at once is not in use.
    """
    found = []
    for group in groups("memory", proc):
        for files in (V1, V2):
            with suppress(OSError, ValueError):  # the other version's file, or "max" where there is no limit
                limit = int((group / files.limit).read_text())
                stats = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                found.append((limit, int((group / files.used).read_text()) - int(stats.get(files.cache, 0))))
    if not found:
        return None
    limit, used = min(found)
    return used, limit


def cores(proc: Path = PROC) -> float | None:
    """Return the cores whose time the groups allow, the smallest number of them; None if no group has a quota."""
    found = []
    for group in groups("cpu", proc):
        with suppress(OSError, ValueError, ZeroDivisionError):  # version 1, or "max" where there is no limit
            quota, period = (group / "cpu.max").read_text().split()  # in microseconds
            found.append(int(quota) / int(period))
        with suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            found += [int(quota) / int(period)] * (int(quota) > 0)  # -1: no limit
    return min(found, default=None)


def _place(kind: str, controller: str, proc: Path) -> tuple[Path, Path | None] | None:
    """Return where a hierarchy is mounted, and this process's directory if it is below that.

    None if the hierarchy is not mounted, or does not have the controller.
    """
    path = None
    for line in (proc / "cgroup").read_text().splitlines():
        _, controllers, group_path = line.split(":", 2)
        if controllers == controller or (controller and controller in controllers.split(",")):
            path = group_path
    outside = None
    for line in (proc / "mountinfo").read_text().splitlines():
        mount_fields, _, file_system = line.partition(" - ")
        kind_fields = file_system.split()
        if path is None or kind_fields[0] != kind:
            continue
        if not controller or controller in kind_fields[2].split(","):
            _, _, _, root, mount, *_ = mount_fields.split()
            if path == root or path.startswith(f"{root.rstrip('/')}/"):
                return Path(mount), Path(mount) / os.path.relpath(path, root)
            outside = outside or (Path(mount), None)  # another container's, or an outer one's
    return outside
