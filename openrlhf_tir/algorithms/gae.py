"""GAE over the tokens that a policy is trained on (Schulman et al., arXiv 1506.02438). numpy only.

A trajectory holds tokens that nobody chose: what tools answered. They are no actions, so they are skipped: over the
trained tokens t_1 < ... < t_K in order,

    delta_k = r_k + gamma * V_{k+1} - V_k,   V_{K+1} = 0        V_k = V(all tokens before t_k)
    A_k     = delta_k + gamma * lambda * A_{k+1}
    R_k     = A_k + V_k                                         what the critic is trained towards

so that a long tool output between t_k and t_{k+1} neither discounts nor bootstraps: V_{k+1} has read it.  With
`train.env_mask` off, tool output is trained, and counts as the policy's own.
"""

from __future__ import annotations

import numpy as np


def gae(
    rewards: np.ndarray, values: np.ndarray, trained: np.ndarray, gamma: float, lambd: float
) -> tuple[np.ndarray, np.ndarray]:
    """rewards, values [T], trained [T] bool -> (advantages, returns), both [T] float64, 0.0 where not trained."""
    advantages, returns = np.zeros(len(trained)), np.zeros(len(trained))
    next_value = next_advantage = 0.0
    for t in reversed(np.flatnonzero(trained)):
        delta = float(rewards[t]) + gamma * next_value - float(values[t])
        next_value, next_advantage = float(values[t]), delta + gamma * lambd * next_advantage
        advantages[t], returns[t] = next_advantage, next_advantage + next_value
    return advantages, returns
