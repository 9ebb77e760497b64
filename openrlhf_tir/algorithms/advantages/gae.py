"""PPO with a critic (arXiv 1707.06347): GAE (arXiv 1506.02438) over the tokens that a policy is trained on.

The estimator returns rewards per token: the outcome reward is paid at the last trained token. Once the learner's critic
has the values V, `advantages_and_returns` makes advantages of both, which are whitened over the batch, as OpenRLHF
does. The group is no baseline here: a trajectory's reward stays as it is.

A trajectory contains the replies of tools, which are no actions of the policy. They are skipped: over the trained
tokens t_1 < ... < t_K in order,

    delta_k = r_k + gamma * V_{k+1} - V_k,   V_{K+1} = 0        V_k = V(all tokens before t_k)
    A_k     = delta_k + gamma * lambda * A_{k+1}
    R_k     = A_k + V_k                                         what the critic is trained towards

So a long tool output between t_k and t_{k+1} neither discounts nor bootstraps: V_{k+1} has read it. Before
update `train.env_mask_from`, tool output is trained and counts as the policy's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .base import AdvantageInputs, Estimator


def token_rewards(inputs: AdvantageInputs) -> list[np.ndarray]:
    """Return G arrays [T] float64, the reward at the last trained token: no turn has earned a part of it."""
    no_turns = [np.zeros(0)] * len(inputs.rewards_G)
    return token_rewards_by_turn(inputs, no_turns, no_turns)


def token_rewards_by_turn(
    inputs: AdvantageInputs, turns_G: Sequence[np.ndarray], earned_G: Sequence[np.ndarray]
) -> list[np.ndarray]:
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
        rewards[positions[-1:]] += score - rewards.sum()  # no token if none is trained
        rewards_G.append(rewards)
    return rewards_G


def advantages_and_returns(
    rewards: np.ndarray, values: np.ndarray, trained: np.ndarray, gamma: float, lambd: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the advantages and the critic's targets of one trajectory.

    Args:
        rewards: [T], the reward of each token.
        values: [T], the critic's value before each token.
        trained: [T] bool, True where the token is trained.
        gamma: Discount per trained token.
        lambd: Lambda of GAE.

    Returns:
        Advantages and returns, both [T] float64, 0.0 where not trained.
    """
    advantages = np.zeros(len(trained))
    returns = np.zeros(len(trained))
    next_value = 0.0
    next_advantage = 0.0
    for t in reversed(np.flatnonzero(trained)):
        value = float(values[t])
        delta = float(rewards[t]) + gamma * next_value - value
        advantage = delta + gamma * lambd * next_advantage
        advantages[t] = advantage
        returns[t] = advantage + value
        next_value = value
        next_advantage = advantage
    return advantages, returns


gae = Estimator(token_rewards, whiten=True, critic=True, by_group=True, method="PPO with a critic (gae)")
