"""Dr. GRPO (arXiv 2503.20783): A = R - mean(R of the group), with neither the group's std nor whitening.

Dividing by the group's std favours questions that are too easy or too hard; leaving it out keeps the policy gradient
unbiased. The paper's other half, no 1/length in the loss, is actor.loss_agg_mode = "seq-mean-token-sum-norm"."""

from __future__ import annotations

import numpy as np

from .base import AdvantageInputs, Estimator, minus_baseline, over_tokens


def _advantages(inputs: AdvantageInputs) -> list[np.ndarray]:
    return over_tokens(minus_baseline(inputs.rewards_G, inputs.rewards_G.mean()), inputs.trained_G)


# Not whitened: that would bring back the scaling by a std, the bias that the paper removes.
dr_grpo = Estimator(
    _advantages, whiten=False, by_group=True, discounts=False, compares_responses=True, method="Dr. GRPO"
)
