"""GAE over the tokens that a policy is trained on (Schulman et al., arXiv 1506.02438). numpy only.

A trajectory contains the replies of tools, which are no actions of the policy. They are skipped: over the trained
tokens t_1 < ... < t_K in order,

    delta_k = r_k + gamma * V_{k+1} - V_k,   V_{K+1} = 0        V_k = V(all tokens before t_k)
    A_k     = delta_k + gamma * lambda * A_{k+1}
    R_k     = A_k + V_k                                         what the critic is trained towards

So a long tool output between t_k and t_{k+1} neither discounts nor bootstraps: V_{k+1} has read it. Before
update `train.env_mask_from`, tool output is trained and counts as the policy's own.
"""

from __future__ import annotations

import numpy as np


def gae(
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
