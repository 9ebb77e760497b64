"""The staleness rule: how many groups may be under way, and when the learner may step.

    due version   A group has a last version at which the batch that trains it may begin: later, its tokens would be
                  older than max_staleness updates.
    admission     No more groups are under way than the steps until then can train.
    gate          The learner waits with a step while some group could then not be trained in time.

So the learner waits for old groups; none is discarded for its age. The rest of this text says the same in symbols, and
why the gate cannot deadlock.

Let B = batch_groups, k = updates_per_batch, S = max_staleness, and W = batches_ahead = (S + 1) // k - 1, so W = S for
k = 1. The configuration refuses S < k - 1, which would make W negative.

    due(group)          = group.version + W * k
                          The last of the k updates of a batch that begins then is made at most W * k + k - 1 <= S
                          versions after the group's oldest token.
    admission           : buffered + training + max_accepted(rolling) <= (W + 1 - l) * B
                          with l unpushed batches: a new group is sampled with weights that are l batches old already.
    gate at version v   : no group due at v is rolling, and for every due version d >= v what remains and is due by d
                          fits into the steps from v + k to d:
                          |remaining buffered due by d| + max_accepted(|rolling due by d|) <= ((d - v) // k) * B

The gate is Hall's condition for assigning groups to later steps, those due first first. A step at v and those after it
begin at v, v + k, v + 2k, ... at the latest (an update whose gradient is not finite adds no version), so (d - v) // k
more begin by d.

Waiting always helps. If max_accepted(n) = n, admission leaves at most ((d - v) // k + 1) * B groups due by d; once the
old ones have ended, the B groups due first make the condition true. So the gate cannot deadlock.

What can be left over is *surplus*. If max_accepted(n) < n (depth = auto), more groups may be accepted than fit: for
some d more than ((d - v) // k + 1) * B groups are buffered, and no order of steps can train the excess. It does not
count at the gate, and when a batch is taken its prompts are sampled again, at no cost in attempts. What max_accepted
gets wrong costs surplus, never staleness.

When a part of the batch was taken early (early_accumulation.py), the step at v has `places` < B places left. Everything
above holds with `places` for the B of that one step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ...config import Config
from .groups import InFlightGroup


@dataclass(frozen=True, slots=True)
class StalenessRule:
    """The arithmetic of admission and gate: pure functions of policy versions, without state.

    Attributes:
        batch_groups: Groups of a batch.
        updates_per_batch: Policy versions that a batch adds (mini-batches times epochs).
        batches_ahead: Whole batches that may be trained between a group's dispatch and its own batch.
    """

    batch_groups: int
    updates_per_batch: int = 1
    batches_ahead: int = 0

    @classmethod
    def from_config(cls, settings: Config) -> StalenessRule:
        """Return the rule of a run."""
        return cls(settings.rollout.batch_size, settings.updates_per_batch, settings.batches_ahead)

    @property
    def max_groups(self) -> int:
        """Groups that may be under way at once if all of them may be accepted."""
        return (self.batches_ahead + 1) * self.batch_groups

    def due_version(self, group: InFlightGroup) -> int:
        """Return the last version at which the batch that trains the group may begin."""
        return group.version + self.batches_ahead * self.updates_per_batch

    def places_after_step(self, version: int, due_version: int) -> int:
        """Return how many groups the steps after the one at `version` can train by `due_version`."""
        return (due_version - version) // self.updates_per_batch * self.batch_groups

    def batches_between(self, earlier: int, later: int) -> int:
        """Return the batches between two versions, rounded up: one that skipped an update still counts as one."""
        return -((earlier - later) // self.updates_per_batch)

    def gate_is_open(
        self,
        version: int,
        buffered: Iterable[int],
        rolling: Iterable[int],
        max_accepted: Callable[[int], int] = lambda rolling: rolling,
        places: int | None = None,
    ) -> bool:
        """Return True if the step at `version` leaves every remaining group trainable in time.

        Args:
            version: The learner's version.
            buffered: Due versions of all buffered groups, those of the next batch included.
            rolling: Due versions of all rolling groups.
            max_accepted: Returns how many of n rolling groups may be accepted. By default all of them.
            places: Places that the batch at `version` has left; None for all of them.
        """
        places = self.batch_groups if places is None else places
        buffered_by_due_version = Counter(buffered)
        rolling_by_due_version = Counter(rolling)
        buffered_so_far = 0
        rolling_so_far = 0
        for due_version in sorted(buffered_by_due_version.keys() | rolling_by_due_version.keys()):
            places_later = self.places_after_step(version, due_version)
            # Surplus does not count: it is lost whether the learner waits or not.
            buffered_so_far = min(buffered_so_far + buffered_by_due_version[due_version], places_later + places)
            rolling_so_far += rolling_by_due_version[due_version]
            remaining = max(0, buffered_so_far - places)
            # A rolling group that is due now must end first, however unlikely it is to be accepted.
            due_now = places_later <= 0 and rolling_so_far > 0
            if due_now or remaining + max_accepted(rolling_so_far) > places_later:
                return False
        return True

    def surplus(self, version: int, groups: Sequence[InFlightGroup], places: int | None = None) -> tuple[int, ...]:
        """Return the groups, by sequence number, that no order of full batches can train in time.

        Of the groups due by the same version the youngest go, by dispatch and not by end. Otherwise long responses,
        which end last, would be dropped more often than short ones.

        Args:
            version: The learner's version.
            groups: All buffered groups, in training order.
            places: Places that the batch at `version` has left; None for all of them.
        """
        places = self.batch_groups if places is None else places
        groups_by_due_version: dict[int, list[InFlightGroup]] = {}
        for group in groups:
            groups_by_due_version.setdefault(self.due_version(group), []).append(group)
        dropped: list[int] = []
        kept = 0
        for due_version in sorted(groups_by_due_version):
            groups_due = groups_by_due_version[due_version]
            kept += len(groups_due)
            excess = kept - self.places_after_step(version, due_version) - places
            if excess > 0:
                dropped += [group.sequence_number for group in groups_due[-excess:]]
                kept -= excess
        return tuple(dropped)
