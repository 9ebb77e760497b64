"""PPO and GSPO, which openrlhf's PolicyLoss computes: l_t = -min(r_t A_t, clip(r_t, 1 - eps_low, 1 + eps_high) A_t).

ppo     r_t = pi_t / pi_old_t of the token
gspo    r_t = the geometric mean of these over the response, the same for all its tokens; the loss is a mean over
        responses. openrlhf's correction by pi_old / mu weighs PPO's tokens only.
"""

from __future__ import annotations

from .base import PolicyLoss

ppo = PolicyLoss(None, "PPO's clipped ratio", "arXiv 1707.06347")
gspo = PolicyLoss(
    None,
    "PPO with one ratio for each response",
    "arXiv 2507.18071",
    over_sequences=True,
    aggregations=("token-mean",),  # without an effect: OpenRLHF's loss is a mean over responses in any case
    is_corrected=False,
)
