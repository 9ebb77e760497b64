"""Early accumulation (pipeline.early_accumulation): the learner begins on a part of a batch before the rest is there.

The learner makes the gradients of the part and keeps them; the step then adds those of the rest. Optional: the
scheduler asks this module whether a part may be taken, and works without it.

A part consists of the buffered groups that are due first. It is taken only if every rolling group that is due before
them still has a place, even if all of these are accepted. So a part never delays a step or drops a group: surplus, gate
and staleness are those of a run without parts, and a part can wait for the rest as long as it takes.

In symbols, with B = batch_groups, k = updates_per_batch and W = batches_ahead (staleness.py), let the part leave
`places` places of the batch at version v, and let D be the latest due version in it. The condition is

    for every due version d < D:    |rolling due by d|  <=  places + ((d - v) // k) * B

* For d >= D, each group taken frees one place and needs one: what is due by d exceeds the places as far as before.
* For d < D, nothing that is due by d stays buffered, because those groups were taken first. What rolls is all there is,
  and by the condition it has its places even if all of it is accepted.
* What is dispatched while the engines have version u is due by u + W * k, and no group under way is due later than
  that. There admission speaks, which counts the part as training. A group that fails and is dispatched again is due
  later than it was.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ...config import Config
from .staleness import StalenessRule

MAX_PARTS = 16
"""Parts that a batch is split into at most. The step then has less than a sixteenth of the batch left besides the
groups that kept it waiting, and with some hundred samples a part still fills micro batches of several ranks."""


@dataclass(frozen=True, slots=True)
class EarlyAccumulation:
    """Decides when a part of a batch may be taken.

    Attributes:
        rule: The staleness rule.
        part_groups: Groups of a part; 0 if no part is ever taken.
    """

    rule: StalenessRule
    part_groups: int

    @classmethod
    def from_config(cls, settings: Config) -> EarlyAccumulation:
        """Return the rule of a run. A part gives each learner rank at least one trajectory."""
        rule = StalenessRule.from_config(settings)
        if settings.pipeline.early_accumulation == "off":
            return cls(rule, part_groups=0)
        groups_for_all_ranks = math.ceil(settings.shards / settings.rollout.n_samples_per_prompt)
        return cls(rule, part_groups=max(math.ceil(rule.batch_groups / MAX_PARTS), groups_for_all_ranks))

    def leaves_a_rest(self, buffered: int, places: int) -> bool:
        """Return True if a part can be taken and at least one group stays for the step itself.

        The end of the prompts may make that group the last one, and a step needs a batch that is not empty.

        Args:
            buffered: Number of buffered groups.
            places: Places that the current batch has left.
        """
        return 0 < self.part_groups < min(buffered, places)

    def may_take(self, version: int, part: Iterable[int], rolling: Iterable[int], places: int) -> bool:
        """Return True if taking the part cannot delay a step or drop a group: the condition above.

        Args:
            version: The learner's version.
            part: Due versions of the groups of the part: the buffered groups that are due first.
            rolling: Due versions of all rolling groups.
            places: Places that the batch has left after the part.
        """
        latest_due_version = max(part, default=version)
        rolling_so_far = 0
        for due_version, count in sorted(Counter(rolling).items()):
            rolling_so_far += count
            available = places + self.rule.places_after_step(version, due_version)
            if due_version < latest_due_version and rolling_so_far > available:
                return False
        return True
