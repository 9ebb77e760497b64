"""FlashREINFORCE (OpenRLHF's estimator for one sample per prompt): A = R - mean(R of the whole rollout batch), without
whitening.

The one estimator that needs no group: with rollout.n_samples_per_prompt = 1 it is the only baseline there is. Easy
prompts are then pushed up and hard ones down, which a group's own mean would not do.
"""

from __future__ import annotations

import numpy as np

from .base import AdvantageInputs, Estimator, over_tokens


def _advantages(inputs: AdvantageInputs) -> list[np.ndarray]:
    of_all = inputs.batch_rewards if len(inputs.batch_rewards) else inputs.rewards_G
    return over_tokens(inputs.rewards_G - of_all.mean(), inputs)


flash_reinforce = Estimator(_advantages, whiten=False)
