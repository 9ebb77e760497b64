"""Replay: accepted groups waiting to be trained, oldest first. Metadata here; payloads are references.

Order is by the policy version at dispatch, then by dispatch, never by arrival: taking the first finished would favour
short answers. The version comes first because a group that was issued again keeps its place in line but not its
deadline: the one due first is first."""

from __future__ import annotations

import heapq

from ..types import BatchItem

Place = tuple[int, int]
"""(policy version at dispatch, dispatch number): unique, the smallest is trained first."""


class ReplayBuffer:
    """A priority queue on `Place`; what comes out is (dispatch number, item)."""

    def __init__(self) -> None:
        self._heap: list[tuple[Place, BatchItem]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, place: Place, item: BatchItem) -> None:
        heapq.heappush(self._heap, (place, item))

    def take(self, n: int) -> list[tuple[int, BatchItem]]:
        """Removes the n oldest groups and returns them."""
        return [(dispatch, item) for (_, dispatch), item in (heapq.heappop(self._heap) for _ in range(n))]

    def get(self, dispatch: int) -> BatchItem | None:
        """One group, which stays; None when it is not here."""
        return next((item for (_, at), item in self._heap if at == dispatch), None)

    def remove(self, dispatch: int) -> None:
        """Take out one group, whatever its place. Raises KeyError when it is not here."""
        rest = [entry for entry in self._heap if entry[0][1] != dispatch]
        if len(rest) == len(self._heap):
            raise KeyError(dispatch)
        heapq.heapify(rest)
        self._heap = rest

    def dispatches(self) -> list[int]:
        """The dispatch numbers of all groups, the oldest first."""
        return [dispatch for _, dispatch in sorted(place for place, _ in self._heap)]

    def items(self) -> list[tuple[int, BatchItem]]:
        """Everything, oldest first, not removed."""
        return [(dispatch, item) for (_, dispatch), item in sorted(self._heap, key=lambda entry: entry[0])]
