"""The cores that this process may use, and whether they compute in bf16."""

from __future__ import annotations

import math
import os
from pathlib import Path

from . import control_group
from .control_group import PROC

CPUINFO = Path("/proc/cpuinfo")
BF16_FLAGS = ({"avx512bw", "avx512vl", "avx512dq"}, {"bf16"})
"""Flags of x86 and of Arm cores with which oneDNN multiplies matrices in bf16. Without them torch does so element by
element."""


def computes_bf16(cpuinfo: Path = CPUINFO) -> bool:
    """Return False if the cores are known to lack fast instructions for bf16.

    Args:
        cpuinfo: What Linux says about the cores.
    """
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:  # another system
        return True
    of_cores = (line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features")))
    flags = set(next(of_cores, ()))
    return not flags or any(needed <= flags for needed in BF16_FLAGS)


def usable_cores(proc: Path = PROC) -> int:
    """Return the number of cores that this process may use: by its affinity, and by its container's quota.

    Args:
        proc: /proc/self, replaced in tests.
    """
    cores = len(os.sched_getaffinity(0))
    quota = control_group.cores(proc)
    return cores if quota is None else max(1, min(cores, math.floor(quota)))
