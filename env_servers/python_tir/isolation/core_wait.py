"""Tell a program that the machine had no core for from one that used up its time itself.

The wall clock cannot tell them apart: beside busy neighbours a snippet of a second misses a limit of five. The kernel
counts for each thread how long it was ready to run and had no core (/proc/PID/task/TID/schedstat). A program whose own
threads and processes take the cores from each other computes meanwhile, so that is not the machine's fault.
"""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress

from ..sandbox import NoCore
from .tree import descendants

LEAST_SHARE = 0.25
"""Share of its time limit for which a program must have computed, or else not have waited for a core in the rest: with
less of a core a program is too slow to be judged by a wall clock."""
LEAST_WAIT_S = 1.5
"""Seconds for which it must have waited at least: of a shorter limit too little is seen."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class CoreWait:
    """How long the processes below a process wait for a core, and compute. Call `look` several times a second."""

    def __init__(self, pid: int, limit_s: float) -> None:
        """Begin to count.

        Args:
            pid: The process whose descendants are counted.
            limit_s: Their time limit in seconds.
        """
        self._pid = pid
        self._limit_s = limit_s
        self._waited, self._computed = self._read()
        self._looks: deque[tuple[float, float, float]] = deque()
        """Time, seconds waited and seconds computed since the look before, of the last `limit_s` seconds."""

    def look(self) -> None:
        """Read what was waited and computed since the last look."""
        now = time.monotonic()
        waited, computed = self._read()
        longest = max((seconds - self._waited.get(thread, 0.0) for thread, seconds in waited.items()), default=0.0)
        total = sum(max(0.0, seconds - self._computed.get(pid, 0.0)) for pid, seconds in computed.items())
        self._waited = waited
        self._computed = computed
        self._looks.append((now, longest, total))
        while self._looks[0][0] <= now - self._limit_s:
            self._looks.popleft()

    def check(self) -> None:
        """Judge a program whose time limit has passed.

        Raises:
            NoCore: The machine is to blame.
        """
        waited_s = sum(waited for _, waited, _ in self._looks)
        computed_s = sum(computed for _, _, computed in self._looks)
        waited_most = waited_s >= max(LEAST_WAIT_S, (1 - LEAST_SHARE) * self._limit_s)
        if waited_most and computed_s < LEAST_SHARE * self._limit_s:
            raise NoCore(
                f"the machine had no core for the code in {waited_s:.1f} of its {self._limit_s:g} s. Give the server"
                " more cores, or fewer --workers."
            )

    def _read(self) -> tuple[dict[int, float], dict[int, float]]:
        """Return the seconds that each thread has waited, and each process has computed with the children that it has
        waited for. A thread that took a lower priority than this server's wants to wait, so it is left out. Both are
        empty where the kernel does not count."""
        waited: dict[int, float] = {}
        computed: dict[int, float] = {}
        own_policy = os.sched_getscheduler(0)
        own_nice = os.getpriority(os.PRIO_PROCESS, 0)
        for pid in descendants(self._pid):
            with suppress(OSError, ValueError, IndexError):  # it has ended
                computed[pid] = sum(map(int, _numbers(f"/proc/{pid}/stat")[11:15])) / _TICKS_PER_S
                for thread in os.listdir(f"/proc/{pid}/task"):
                    numbers = _numbers(f"/proc/{pid}/task/{thread}/stat")
                    if int(numbers[38]) != own_policy or int(numbers[16]) > own_nice:
                        continue
                    with open(f"/proc/{pid}/task/{thread}/schedstat") as f:
                        waited[int(thread)] = int(f.read().split()[1]) / 1e9
        return waited, computed


def _numbers(path: str) -> list[str]:
    """Return what stands behind the name in a file of `stat` (proc_pid_stat(5): the third field and those after it)."""
    with open(path) as f:
        return f.read().rpartition(")")[2].split()
