"""PPO with a critic (arXiv 1707.06347): the outcome reward is paid at the last trained token.

This file returns rewards per token; the learner's critic turns them into advantages (../gae.py), which are whitened
over the batch, as OpenRLHF does. The group is no baseline here: a trajectory's reward stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .base import AdvantageInputs, Estimator


def by_turn(inputs: AdvantageInputs, turns_G: Sequence[np.ndarray], earned_G: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return rewards per token with credit to the turn (algo.advantage.credit = turn).

    What a turn earned is paid at its last trained token; the rest of the outcome at the last trained token of all. The
    reward of a turn without a trained token is paid with the rest, so nothing is lost.

    Args:
        inputs: The group.
        turns_G: G arrays [T] int, the turn of each token.
        earned_G: G arrays [turns of the trajectory] float64, the reward of each turn.

    Returns:
        G arrays [T] float64.
    """
    rewards_G = []
    for score, trained, turns, earned in zip(inputs.rewards_G, inputs.trained_G, turns_G, earned_G, strict=True):
        rewards = np.zeros(len(trained))
        positions = np.flatnonzero(trained)
        for turn, reward in enumerate(earned):
            last_position_of_turn = positions[turns[positions] == turn][-1:]  # empty if the turn has no trained token
            rewards[last_position_of_turn] += reward
        rewards[positions[-1:]] += score - rewards.sum()
        rewards_G.append(rewards)
    return rewards_G


def _rewards(inputs: AdvantageInputs) -> list[np.ndarray]:
    """Return G arrays [T] float64, the reward at the last trained token."""
    rewards_G = []
    for score, trained in zip(inputs.rewards_G, inputs.trained_G, strict=True):
        rewards = np.zeros(len(trained))
        rewards[np.flatnonzero(trained)[-1:]] = score  # no token if none is trained
        rewards_G.append(rewards)
    return rewards_G


gae = Estimator(_rewards, whiten=True, critic=True, by_group=True, method="PPO with a critic (gae)")
