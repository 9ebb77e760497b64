"""Budget: who may start, who may step. In-flight accounting in groups and staleness arithmetic in policy versions.

    acquired = rolling + buffered + training + trained + filtered + failed + requeued          (conservation)

*Admission*: rolling + buffered + training <= (S+1)*B, and rolling + buffered <= depth. A group dispatched at version u has the
deadline u + S: the last version at which it may be trained.

*Gate*: the step at version v may run iff afterwards every remaining group still meets its deadline when each later step takes B
groups, oldest first. That is Hall's condition, for every deadline d >= v:

    #{remaining with deadline <= d} <= (d - v) * B                                              (d = v: none may remain)

Waiting always helps: by admission at most (d - v + 1) * B groups have deadlines <= d, so once the old ones are rolled, the B oldest
make it true. Hence no group is ever dropped for age, and the gate cannot deadlock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..errors import ConservationError
from .signal import Signal

TERMINAL = ("trained", "filtered", "failed", "requeued")


def gate_open(version: int, batch_groups: int, remaining_deadlines: Iterable[int]) -> bool:
    """Whether the step at `version` leaves every remaining group trainable in time (Hall's condition above)."""
    return all(count <= (d - version) * batch_groups for d, count in _cumulative(remaining_deadlines))


def _cumulative(deadlines: Iterable[int]) -> Iterable[tuple[int, int]]:
    total = 0
    for d, n in sorted(Counter(deadlines).items()):
        total += n
        yield d, total


class Budget:
    """Slots. Every change notifies `signal`; nothing here waits."""

    def __init__(self, *, batch_groups: int, max_staleness: int, depth: int | None = None, signal: Signal | None = None) -> None:
        self.limit = (max_staleness + 1) * batch_groups
        self.depth = self.limit if depth is None else min(depth, self.limit)
        self.signal = signal or Signal()
        self.states: Counter[str] = Counter()
        self.acquired = 0
        self.still_needed: int | None = None
        """Groups that the steps left can use at most; None: no end in sight."""
        self._paused = False

    @property
    def rolling(self) -> int:
        return self.states["rolling"]

    @property
    def pending(self) -> int:
        return self.states["rolling"] + self.states["buffered"]

    def admits(self) -> bool:
        """Whether one more group may start now."""
        held = self.pending + self.states["training"]
        needed = self.limit if self.still_needed is None else min(self.limit, self.still_needed)
        return not self._paused and self.pending < self.depth and held < needed

    def enter(self, state: str = "rolling") -> None:
        """A group takes a slot: a new one rolls; one restored from a checkpoint may be buffered already."""
        self.acquired += 1
        self.states[state] += 1
        self.signal.notify()

    def move(self, source: str, target: str, n: int = 1) -> None:
        """n groups change state. Raises ConservationError when they were not in `source`."""
        if self.states[source] < n:
            raise ConservationError(f"{n} groups should move {source} -> {target}, but only {self.states[source]} are {source}: a group was counted twice.")
        self.states[source] -= n
        self.states[target] += n
        self.signal.notify()

    def pause(self) -> None:
        """Admit nothing until `resume`."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self.signal.notify()

    def check(self, **actual: int) -> None:
        """Compare the books with reality: `rolling=`, `buffered=`, `training=` as counted by their owners.

        Raises ConservationError when a slot was lost or counted twice.
        """
        total = sum(self.states.values())
        wrong = [f"{name}: {self.states[name]} in the books, {n} in fact" for name, n in actual.items() if self.states[name] != n]
        if total != self.acquired:
            wrong.append(f"{self.acquired} started, states add up to {total}")
        if wrong:
            raise ConservationError(f"Slots do not add up ({'; '.join(wrong)}). Books: {dict(self.states)}. Resume from the last checkpoint and report this.")
