"""REINFORCE without a baseline (Williams 1992): A_t = gamma^(last - t) * R, then whitened over the batch.

The whitening centres the advantages: with rewards of one sign a batch would otherwise only push up, or only down. This
estimator and gae use `gamma`; the group estimators compare whole trajectories.
"""

from __future__ import annotations

import numpy as np

from .base import AdvantageInputs, Estimator, returns_to_go


def _advantages(inputs: AdvantageInputs) -> list[np.ndarray]:
    return [
        returns_to_go(float(reward), trained, inputs.gamma)
        for reward, trained in zip(inputs.rewards_G, inputs.trained_G, strict=True)
    ]


reinforce = Estimator(_advantages, whiten=True, by_group=True, method="REINFORCE++")
