"""FlashREINFORCE (OpenRLHF's estimator for one sample per prompt): A = R - mean(R of the whole rollout batch), without
whitening.

With rollout.n_samples_per_prompt = 1 a group has no other response to compare with, so that the batch is the baseline.
The cost: responses to easy prompts are pushed up and those to hard prompts down, which a group's own mean would not do.
"""

from __future__ import annotations

import numpy as np

from .base import AdvantageInputs, Estimator, minus_baseline, over_tokens


def _advantages(inputs: AdvantageInputs) -> list[np.ndarray]:
    batch_rewards = inputs.batch_rewards if len(inputs.batch_rewards) else inputs.rewards_G
    return over_tokens(minus_baseline(inputs.rewards_G, batch_rewards.mean(), averaged=batch_rewards), inputs.trained_G)


flash_reinforce = Estimator(_advantages, whiten=False, discounts=False, method="FlashREINFORCE")
