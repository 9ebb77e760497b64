"""CPU time of a process and all below it, as it grows, by what they are: other work on the machine moves the clock, and
this little. Linux."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import PurePath

import psutil

Point = tuple[float, Mapping[str, float]]
"""(seconds since the epoch, CPU seconds until then by name)."""

ENDED = "ended"
"""Processes that were never seen alive."""


class CpuTrace:
    """`look` now and then; processes that end in between lose what they did since the last look."""

    def __init__(self, pid: int) -> None:
        self.known: set[psutil.Process] = {psutil.Process(pid)}
        self._spent: dict[psutil.Process, tuple[str, float]] = {}
        self.points: list[Point] = []

    def look(self) -> None:
        below: dict[int, list[psutil.Process]] = {}
        # Once for all: each process's own `children` would read all of /proc. Nothing is asked for, since psutil keeps
        # that in objects that PssSampler's thread has too.
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                below.setdefault(process.ppid(), []).append(process)
        todo = list(self.known)  # those that were re-parented too
        while todo:
            fresh = [child for child in below.get(todo.pop().pid, ()) if child not in self.known]
            self.known.update(fresh)
            todo += fresh
        for process in self.known:
            with suppress(psutil.Error):
                used = process.cpu_times()
                words = process.cmdline()  # empty once it has ended and nobody has asked for its exit code
                name = name_of(words) if words else self._spent.get(process, (ENDED, 0.0))[0]
                self._spent[process] = (name, used.user + used.system)
        total: defaultdict[str, float] = defaultdict(float)
        for name, seconds in self._spent.values():
            total[name] += seconds
        self.points.append((time.time(), dict(total)))


def name_of(words: Sequence[str]) -> str:
    """python -m env_servers.python_tir --workers 2 -> env_servers.python_tir; Ray's actors are called ray::NAME, and
    ray::NAME.method at work."""
    if words[0].startswith("ray::"):
        return words[0].split(".")[0].split("(")[0]
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    if "-c" in words[:-1]:  # python -c "from multiprocessing.forkserver import main; ..."
        return words[words.index("-c") + 1].split(" import")[0].removeprefix("from ").split(";")[0]
    script = next((w for w in words[1:] if w.endswith(".py")), None)
    return PurePath(script or words[0].split()[0]).name


def spent(points: Sequence[Point], start: float, end: float) -> dict[str, float]:
    """CPU seconds from `start` to `end` by name, on straight lines between the looks."""
    last = at(points, end)
    first = at(points, start)
    return {name: seconds - first.get(name, 0.0) for name, seconds in last.items()}


def at(points: Sequence[Point], when: float) -> Mapping[str, float]:
    """CPU seconds at a time; those of the first or last look outside of them."""
    if not points or when <= points[0][0]:
        return points[0][1] if points else {}
    for (t0, c0), (t1, c1) in pairwise(points):
        if when <= t1:
            share = (when - t0) / (t1 - t0) if t1 > t0 else 1.0
            return {name: c0.get(name, 0.0) + share * (c - c0.get(name, 0.0)) for name, c in c1.items()}
    return points[-1][1]
