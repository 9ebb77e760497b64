"""Histogram: numbers -> counts per bucket, in fixed memory. What a queue can tell about itself after a hundred million requests."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """`counts[i]` observations are in (bounds[i-1], bounds[i]]; the last count is of those above every bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def quantile(self, q: float) -> float:
        """An upper bound of the q-quantile: the bound of its bucket; inf above the last, 0.0 before the first observation."""
        rank, seen = q * self.count, 0
        for bound, n in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += n
            if n and seen >= rank:
                return bound
        return 0.0

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus's buckets: (upper bound, observations at most that large)."""
        seen = 0
        rows: list[tuple[str, float]] = []
        for bound, n in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            seen += n
            rows.append((bound, seen))
        return rows
