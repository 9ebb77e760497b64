"""The cores that this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""CPU time that a container may use in a period, both in microseconds (cgroup v2): "200000 100000", or "max 100000"."""


def usable_cores(quota: Path = QUOTA) -> int:
    """Return the number of cores that this process may use: by its affinity, and by its container's quota.

    Args:
        quota: The file with the container's quota. Without one the affinity alone counts.
    """
    cores = len(os.sched_getaffinity(0))
    try:
        allowed, period = quota.read_text().split()
        return max(1, min(cores, math.floor(int(allowed) / int(period))))
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or no limit
        return cores
