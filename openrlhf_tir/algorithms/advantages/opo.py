"""OPO (arXiv 2505.23585): A = R - b, b = sum_i l_i R_i / sum_i l_i, with l_i the trained tokens of trajectory i of
the group.

The baseline of least gradient variance is E[|grad log pi|^2 R] / E[|grad log pi|^2]; the paper takes the squared norm
as proportional to the length. There is neither a std nor whitening. If all lengths are equal, b is the group mean.
Without a trained token, A = 0.
"""

from __future__ import annotations

import numpy as np

from .base import AdvantageInputs, Estimator, minus_baseline, over_tokens


def _advantages(inputs: AdvantageInputs) -> list[np.ndarray]:
    lengths_G = np.array([trained.sum() for trained in inputs.trained_G], np.float64)
    baseline = (lengths_G * inputs.rewards_G).sum() / max(lengths_G.sum(), 1.0)
    return over_tokens(minus_baseline(inputs.rewards_G, baseline), inputs.trained_G)


opo = Estimator(
    _advantages,
    whiten=False,
    by_group=True,
    discounts=False,
    compares_responses=True,
    centred_over_tokens=True,
    method="OPO",
)
