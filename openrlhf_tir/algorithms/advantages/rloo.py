"""RLOO (arXiv 2402.14740): A_i = R_i - mean of the *other* rewards of the group.

Leaving the trajectory out makes the baseline independent of it, hence unbiased. A group of one has no others: A = 0,
and nothing is learned.
"""

from __future__ import annotations

import numpy as np

from .base import AdvantageInputs, Estimator, minus_baseline, over_tokens


def _advantages(inputs: AdvantageInputs) -> list[np.ndarray]:
    rewards_G = inputs.rewards_G
    n = len(rewards_G)
    others_G = (rewards_G.sum() - rewards_G) / (n - 1) if n > 1 else rewards_G
    return over_tokens(minus_baseline(rewards_G, others_G), inputs.trained_G)


# Not whitened: the leave-one-out baseline centres it.
rloo = Estimator(_advantages, whiten=False, by_group=True, discounts=False, compares_responses=True, method="RLOO")
