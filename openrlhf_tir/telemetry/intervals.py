"""Arithmetic on (start, end) pairs of seconds: union, intersection, length, lanes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return disjoint intervals, in order, that cover the same points. Touching ones are joined, empty ones left
    out."""
    joined: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def intersection(a: Sequence[Interval], b: Sequence[Interval]) -> list[Interval]:
    """Return what two unions have in common. Both must be disjoint and in order, as `union` returns them."""
    common: list[Interval] = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            common.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return common


def length(disjoint: Iterable[Interval]) -> float:
    """Return the sum of the lengths of disjoint intervals, in seconds."""
    return sum(end - start for start, end in disjoint)


def lanes(ordered: Sequence[Interval]) -> list[int]:
    """Return the lowest free lane of each interval, so that no two of a lane overlap. `ordered` is sorted by start."""
    free: list[int] = []
    running: list[tuple[float, int]] = []
    taken: list[int] = []
    for start, end in ordered:
        while running and running[0][0] <= start:
            heapq.heappush(free, heapq.heappop(running)[1])
        lane = heapq.heappop(free) if free else len(running)
        heapq.heappush(running, (end, lane))
        taken.append(lane)
    return taken
