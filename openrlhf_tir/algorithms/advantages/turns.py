"""Credit to the turn: any estimator, asked once for each turn, with what the trajectory earned from that turn on.

An environment that rewards calls says which turn did well. With r_ij the reward of turn j of trajectory i (0 where its
reply had none), R_i the trajectory's reward, which includes them, and f an estimator:

    G_ij = R_i - sum over j' < j of r_ij'          what is earned from turn j on; G_i0 = R_i
    A of turn j's tokens = f(G_ij of the trajectories that have a turn j)

So turn j is compared with the turns j of its group, as in MT-GRPO (arXiv 2505.11821) and turn-level credit after it. No
rewards of calls: G_ij = R_i, but later turns are compared with fewer. A turn that only one trajectory has learns
nothing from a group baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .base import AdvantageFn, AdvantageInputs


def per_turn(
    fn: AdvantageFn, inputs: AdvantageInputs, turns_G: Sequence[np.ndarray], earned_G: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """turns_G: G arrays [T] int, the turn of each token; earned_G: G arrays [turns of the trajectory] float64, the
    reward of each turn."""
    out = [np.zeros(len(trained)) for trained in inputs.trained_G]
    for j in range(max((len(earned) for earned in earned_G), default=0)):
        having = [i for i, earned in enumerate(earned_G) if len(earned) > j]
        rewards = np.array([inputs.rewards_G[i] - earned_G[i][:j].sum() for i in having])
        masks = [inputs.trained_G[i] & (turns_G[i] == j) for i in having]
        for i, advantages in zip(having, fn(replace(inputs, rewards_G=rewards, trained_G=masks)), strict=True):
            out[i] += advantages
    return out
