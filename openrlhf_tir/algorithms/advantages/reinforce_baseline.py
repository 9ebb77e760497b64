"""REINFORCE++-baseline (arXiv 2501.03262, section 3.2): A = R - mean(R of the group), then whitened over the batch's
trained tokens.

ZeroTIR's estimator. A group whose rewards are all equal has A = 0 before whitening; the batch mean then moves it a
little, which is why such groups are filtered rather than trained.
"""

from __future__ import annotations

import numpy as np

from .base import AdvantageInputs, Estimator, minus_baseline, over_tokens


def _advantages(inputs: AdvantageInputs) -> list[np.ndarray]:
    return over_tokens(minus_baseline(inputs.rewards_G, inputs.rewards_G.mean()), inputs.trained_G)


# Whitening is the second step of the paper.
reinforce_baseline = Estimator(
    _advantages,
    whiten=True,
    by_group=True,
    discounts=False,
    compares_responses=True,
    method="REINFORCE++-baseline",
)
