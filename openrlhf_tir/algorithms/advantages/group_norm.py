"""GRPO (arXiv 2402.03300, section 4.1.2): A = (R - mean) / (std + 1e-6) within the group, unbiased std.

If all rewards are equal, A = 0 / 1e-6 = 0. A group of one has A = 0, as its std is undefined.
"""

from __future__ import annotations

import numpy as np

from .base import AdvantageInputs, Estimator, minus_baseline, over_tokens

EPS = 1e-6


def _advantages(inputs: AdvantageInputs) -> list[np.ndarray]:
    rewards_G = inputs.rewards_G
    std = rewards_G.std(ddof=1) if len(rewards_G) > 1 else 0.0
    return over_tokens(minus_baseline(rewards_G, rewards_G.mean()) / (std + EPS), inputs.trained_G)


# Not whitened: the group's std has scaled it already.
group_norm = Estimator(
    _advantages, whiten=False, by_group=True, discounts=False, compares_responses=True, method="GRPO (group_norm)"
)
