"""PPO with a critic (arXiv 1707.06347): the outcome reward at the last trained token; the learner's critic makes
advantages of it (../gae.py).

The group is no baseline here: a trajectory's reward stays what it is. Whitened over the batch, as OpenRLHF does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .base import AdvantageInputs, Estimator


def by_turn(inputs: AdvantageInputs, turns_G: Sequence[np.ndarray], earned_G: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The same with algo.advantage.credit = turn: what a turn earned is at its last trained token, the rest of the
    outcome at the last of all.

    turns_G: G arrays [T] int, the turn of each token; earned_G: G arrays [turns of the trajectory] float64. A turn
    without a trained token has its reward with the rest: none is lost.
    """
    rewards = []
    for score, trained, turns, earned in zip(inputs.rewards_G, inputs.trained_G, turns_G, earned_G, strict=True):
        r = np.zeros(len(trained))
        positions = np.flatnonzero(trained)
        for j, reward in enumerate(earned):
            r[positions[turns[positions] == j][-1:]] += reward
        r[positions[-1:]] += score - r.sum()
        rewards.append(r)
    return rewards


def _rewards(inputs: AdvantageInputs) -> list[np.ndarray]:
    """Rewards [T] per trajectory."""
    rewards = []
    for score, trained in zip(inputs.rewards_G, inputs.trained_G, strict=True):
        positions = np.flatnonzero(trained)
        r = np.zeros(len(trained))
        r[positions[-1:]] = score
        rewards.append(r)
    return rewards


gae = Estimator(_rewards, whiten=True, critic=True)
