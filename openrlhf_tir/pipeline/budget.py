"""Budget: who may start, who may step. In-flight accounting in groups and staleness arithmetic in policy versions.

    acquired = rolling + buffered + training + trained + filtered + failed + requeued

is conserved (types.GroupState).

A batch of B groups is trained in k updates (mini-batches, epochs), and S counts updates; W = (S+1) // k - 1 whole
batches fit in between (Config.batches_ahead). With k = 1, W = S.

*Admission*: buffered + training + possible(rolling) <= (W+1)*B, where possible(n) says how many of n rolling groups may
be accepted: all of them, or fewer with `depth = auto` (depth.py). A group dispatched at version u has the deadline u +
W*k: the last version at which the batch that trains it may begin; the last of its updates is then made (W+1)*k - 1 <= S
versions after u.

*Gate*: the step at version v may run iff no group due at v is still rolling and afterwards every remaining group that
may be accepted meets its deadline when each later step takes B groups, the first due first. A step at v and those after
it begin at v, v + k, v + 2k, ... at the latest (an update whose gradient is not finite is no version), so (d - v) // k
more begin by d. That is Hall's condition, for every d >= v:

    #{remaining, buffered, due by d} + possible(#{rolling, due by d}) <= ((d - v) // k) * B

With a push only every so many steps, what is dispatched l steps after the last push is l batches old already: then
(W+1-l)*B is the bound of admission, so that what follows holds for it too.

Waiting always helps. With possible(n) = n at most ((d - v) // k + 1) * B groups are due by d by admission, so once the
old ones are rolled, the B first due make it true: no group is ever dropped for age, and the gate cannot deadlock. With
possible(n) < n more may be accepted than fit; then #{buffered, due by d} > ((d - v) // k + 1) * B for some d, and the
excess, which no order of steps can train in time, is *surplus*: it does not count above, and it is dropped when the
gate opens. Nothing due before v + k is left rolling or buffered by a step, so the bound S holds in both cases; what
`possible` gets wrong costs surplus, never staleness.

*Early* (pipeline.early_accumulation): part of a batch is taken, and its gradients are made, before the rest is there.
With t groups taken, l = B - t places are left, and everything above holds with l in the place of the first B: by d
there are l + ((d - v) // k) * B places from the step at v on, its own counted. Each part is of the groups first due of
those buffered; it may be taken when, D being the last deadline in it and l what it leaves,

    for every d < D:    #{rolling, due by d}  <=  l + ((d - v) // k) * B            all of them, likely or not

A part so taken pushes nothing out and shuts no gate: for d >= D a place and a group due by d go together, so that what
is due by d exceeds the places exactly as far as it did before. For d < D nothing due by d stays buffered (those were
taken first), what rolls is all there is, and it has its places even if all of it is accepted. What is issued later has
a deadline that no group under way is behind, V = u + W*k; for d = V it is admission that speaks, which counts the taken
ones among `training`: buffered + possible(rolling) <= l + W*B. A group that fails and is issued again is due later than
it was. So a part can wait for the others as long as it takes: surplus, gate and bound are those of a run without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from ..errors import ConservationError
from ..types import GroupState
from .depth import Depth, FixedDepth
from .signal import Signal


def gate_open(
    version: int,
    batch_groups: int,
    buffered: Iterable[int],
    rolling: Iterable[int],
    possible: Callable[[int], int] = lambda rolling: rolling,
    updates: int = 1,
    places: int | None = None,
) -> bool:
    """Whether the step at `version` leaves every remaining group trainable in time (Hall's condition above).

    `buffered`, `rolling`: deadlines of all groups, those of the next batch included; `updates`: k, of a batch;
    `places` that the batch at `version` has left, None: all B.
    """
    waiting, under_way = Counter(buffered), Counter(rolling)
    places = batch_groups if places is None else places
    kept = rolls = 0
    for d in sorted(waiting.keys() | under_way.keys()):
        room = (d - version) // updates * batch_groups
        kept = min(kept + waiting[d], room + places)
        rolls += under_way[d]
        if (room <= 0 and rolls) or max(0, kept - places) + possible(rolls) > room:
            return False
    return True


def may_take_early(
    version: int, batch_groups: int, part: Iterable[int], rolling: Iterable[int], places: int, updates: int = 1
) -> bool:
    """Whether a part of the batch at `version` may be taken now (the condition above). `part`: deadlines of the groups
    first due of those buffered; `rolling`: of all that roll; `places` that the batch has left after it."""
    last = max(part, default=version)
    rolls = 0
    for d, n in sorted(Counter(rolling).items()):
        rolls += n
        if d < last and rolls > places + (d - version) // updates * batch_groups:
            return False
    return True


def surplus_by_deadline(
    version: int, batch_groups: int, buffered: Iterable[int], updates: int = 1, places: int | None = None
) -> dict[int, int]:
    """Deadline -> how many of the buffered groups due then cannot be trained in time, though every step from `version`
    on takes B. `places`: see gate_open."""
    kept, over = 0, {}
    places = batch_groups if places is None else places
    for d, n in sorted(Counter(buffered).items()):
        kept += n
        excess = kept - (d - version) // updates * batch_groups - places
        if excess > 0:
            over[d] = excess
            kept -= excess
    return over


class Budget:
    """Slots. Every change notifies `signal`; nothing here waits."""

    def __init__(
        self, *, batch_groups: int, max_staleness: int, depth: Depth | None = None, signal: Signal | None = None
    ) -> None:
        """`max_staleness`: W above, in batches."""
        self.batch_groups = batch_groups
        self.limit = (max_staleness + 1) * batch_groups
        self.depth = depth or FixedDepth(self.limit)
        self.signal = signal or Signal()
        self.states: Counter[GroupState] = Counter()
        self.acquired = 0
        self.still_needed: int | None = None
        """Groups that the steps left can use at most; None: no end in sight."""
        self.unpushed = 0
        """Batches that were trained since the engines got weights."""
        self.early = 0
        """Groups of `training` whose batch is not whole yet: the learner still waits, so depth counts them as
        buffered."""
        self.paused = False

    @property
    def rolling(self) -> int:
        return self.states[GroupState.ROLLING]

    @property
    def pending(self) -> int:
        return self.states[GroupState.ROLLING] + self.states[GroupState.BUFFERED]

    def admits(self) -> bool:
        """Whether one more group may start now."""
        rolling, accepted = self.rolling, self.states[GroupState.BUFFERED] + self.states[GroupState.TRAINING]
        if self.paused or accepted + self.depth.possible(rolling + 1) > self.limit - self.unpushed * self.batch_groups:
            return False
        if self.still_needed is not None and accepted + self.depth.likely(rolling) >= self.still_needed:
            return False
        return self.depth.wants(rolling, self.states[GroupState.BUFFERED] + self.early)

    def enter(self, state: GroupState = GroupState.ROLLING) -> None:
        """A group takes a slot: a new one rolls; one restored from a checkpoint may be buffered already."""
        self.acquired += 1
        self.states[state] += 1
        self.signal.notify()

    def move(self, source: GroupState, target: GroupState, n: int = 1) -> None:
        """n groups change state. Raises ConservationError when they were not in `source`."""
        if self.states[source] < n:
            raise ConservationError(
                f"{n} groups should move {source} -> {target}, but only {self.states[source]} are {source}:"
                " a group was counted twice."
            )
        self.states[source] -= n
        self.states[target] += n
        self.signal.notify()

    def pause(self) -> None:
        """Admit nothing until `resume`."""
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self.signal.notify()

    def check(self, **actual: int) -> None:
        """Compare the books with reality: `rolling=`, `buffered=`, `training=` as counted by their owners.

        Raises ConservationError when a slot was lost or counted twice.
        """
        total = sum(self.states.values())
        wrong = [
            f"{name}: {there} in the books, {n} in fact"
            for name, n in actual.items()
            if (there := self.states[GroupState(name)]) != n
        ]
        if total != self.acquired:
            wrong.append(f"{self.acquired} started, states add up to {total}")
        if wrong:
            books = {state.value: n for state, n in self.states.items()}
            raise ConservationError(
                f"Slots do not add up ({'; '.join(wrong)}). Books: {books}."
                " Resume from the last checkpoint and report this."
            )
