"""Keep groups whose mean reward lies strictly within a range, whether their answers are right or wrong.

Use it in place of `accuracy` if right answers can differ in worth, because one took fewer calls or fewer tokens: a
group of only right answers is then kept as long as its rewards differ (filter `zero_variance`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..types import KEEP, Group, Verdict
from .accuracy_range import EPSILON


def reward_range(low: float, high: float) -> Callable[[Group], Verdict]:
    """Return the filter for a range of mean rewards, both bounds exclusive. A group without samples is too low."""

    def apply(group: Group) -> Verdict:
        rewards_G = [trajectory.scored for trajectory in group.valid]
        mean = float(np.mean(rewards_G)) if rewards_G else low
        if mean <= low + EPSILON:
            return Verdict(False, "reward_low")
        if mean >= high - EPSILON:
            return Verdict(False, "reward_high")
        return KEEP

    return apply
