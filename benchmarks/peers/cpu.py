"""CPU time of a process and all below it, as it grows: other work on the machine moves the clock, and this little. Linux."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

import psutil


class CpuTrace:
    """`look` now and then; processes that end in between lose what they did since the last look."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._known: set[psutil.Process] = {self._root}
        self._seconds: dict[psutil.Process, float] = {}
        self.points: list[tuple[float, float]] = []
        """(seconds since the epoch, CPU seconds until then)."""

    def look(self) -> None:
        below: dict[int, list[psutil.Process]] = {}
        # Once for all: each process's own `children` would read all of /proc. Nothing is asked for, since psutil keeps that in objects that PssSampler's thread
        # has too.
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                below.setdefault(process.ppid(), []).append(process)
        todo = list(self._known)  # those that were re-parented too
        while todo:
            fresh = [child for child in below.get(todo.pop().pid, ()) if child not in self._known]
            self._known.update(fresh)
            todo += fresh
        for process in self._known:
            with suppress(psutil.Error):
                spent = process.cpu_times()
                self._seconds[process] = spent.user + spent.system
        self.points.append((time.time(), sum(self._seconds.values())))


def at(points: Sequence[tuple[float, float]], when: float) -> float:
    """CPU seconds at a time; those of the first or last look outside of them."""
    if not points or when <= points[0][0]:
        return points[0][1] if points else 0.0
    for (t0, c0), (t1, c1) in pairwise(points):
        if when <= t1:
            return c0 + (c1 - c0) * (when - t0) / (t1 - t0) if t1 > t0 else c1
    return points[-1][1]
