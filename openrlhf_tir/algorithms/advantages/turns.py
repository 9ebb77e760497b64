"""Credit to the turn: call an estimator once per turn, with what each trajectory earned from that turn on.

An environment that rewards calls tells which turn did well. With r_ij the reward of turn j of trajectory i (0 where its
reply had none), R_i the trajectory's reward, which includes them, and f an estimator with `by_group` (the configuration
refuses others: the rewards of the batch would stay those of whole trajectories):

    G_ij = R_i - sum over j' < j of r_ij'          what is earned from turn j on; G_i0 = R_i
    A of turn j's tokens = f(G_ij of the trajectories that have a turn j)

So turn j is compared with the turns j of its group, as in MT-GRPO (arXiv 2505.11821). Without rewards of calls,
G_ij = R_i, but later turns are compared with fewer others. A turn that only one trajectory has learns nothing from a
group baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .base import AdvantageFn, AdvantageInputs


def per_turn(
    fn: AdvantageFn, inputs: AdvantageInputs, turns_G: Sequence[np.ndarray], earned_G: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Return the advantages of a group with credit to the turn.

    Args:
        fn: The function of an estimator with `by_group` and without `critic`.
        inputs: The group.
        turns_G: G arrays [T] int, the turn of each token.
        earned_G: G arrays [turns of the trajectory] float64, the reward of each turn.

    Returns:
        G arrays [T] float64.
    """
    advantages_G = [np.zeros(len(trained)) for trained in inputs.trained_G]
    max_turns = max((len(earned) for earned in earned_G), default=0)
    for j in range(max_turns):
        with_turn = [i for i, earned in enumerate(earned_G) if len(earned) > j]
        rewards = np.array([inputs.rewards_G[i] - earned_G[i][:j].sum() for i in with_turn])
        masks = [inputs.trained_G[i] & (turns_G[i] == j) for i in with_turn]
        advantages_of_turn = fn(replace(inputs, rewards_G=rewards, trained_G=masks))
        for i, advantages in zip(with_turn, advantages_of_turn, strict=True):
            advantages_G[i] += advantages
    return advantages_G
