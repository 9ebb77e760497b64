"""PPO (arXiv 1707.06347) and GSPO (arXiv 2507.18071), which openrlhf's PolicyLoss computes.

    l_t = -min(r_t A_t, clip(r_t, 1 - eps_low, 1 + eps_high) A_t)

    eps_low, eps_high    actor.eps_clip_low_high
    ppo                  r_t = pi_t / pi_old_t of the token
    gspo                 r_t = the geometric mean of these over the sequence, the same for all its tokens

With actor.dual_clip = d (arXiv 1912.09729) l_t is at most d |A_t| where A_t < 0. What becomes of l_t, __init__.py says.
"""

from __future__ import annotations

from .base import PolicyLossSpec

ppo = PolicyLossSpec(None, "PPO's clipped ratio", "arXiv 1707.06347")
gspo = PolicyLossSpec(
    None,
    "PPO with one ratio for each response",
    "arXiv 2507.18071",
    over_sequences=True,
    is_corrected=False,  # OpenRLHF weighs PPO's tokens only
)
