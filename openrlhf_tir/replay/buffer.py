"""Replay: accepted groups waiting to be trained, oldest dispatched first. Metadata here; payloads are references.

Order is by dispatch, not by arrival: taking the first finished would favour short answers.
"""

from __future__ import annotations

import heapq

from ..types import BatchItem


class ReplayBuffer:
    """A priority queue on the dispatch number that the pipeline gave each group."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, BatchItem]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, dispatch: int, item: BatchItem) -> None:
        heapq.heappush(self._heap, (dispatch, item))

    def take(self, n: int) -> list[tuple[int, BatchItem]]:
        """The n oldest, removed."""
        return [heapq.heappop(self._heap) for _ in range(n)]

    def dispatches(self) -> list[int]:
        return sorted(d for d, _ in self._heap)

    def items(self) -> list[tuple[int, BatchItem]]:
        """Everything, oldest first, not removed."""
        return sorted(self._heap, key=lambda entry: entry[0])
