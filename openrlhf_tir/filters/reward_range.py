"""Keep groups whose mean reward lies strictly within a range of any numbers; what is correct does not matter.

With it in place of `accuracy`, a group that is all right is kept as long as its rewards differ (filter
`zero_variance`): an answer with fewer calls, or a shorter one, can be worth more.
"""

from __future__ import annotations

import numpy as np

from ..types import KEEP, Group, Verdict
from .accuracy_range import EPSILON


def reward_range(lo: float, hi: float):
    def judge(group: Group) -> Verdict:
        rewards_G = [t.scored for t in group.valid]
        mean = float(np.mean(rewards_G)) if rewards_G else lo
        if mean <= lo + EPSILON:
            return Verdict(False, "reward_low")
        return Verdict(False, "reward_high") if mean >= hi - EPSILON else KEEP

    return judge
