"""CISPO (MiniMax-M1, arXiv 2506.13585): clip the importance weight, not the update.

    l_t = -sg(clip(r_t, 1 - eps_low, 1 + eps_high)) A_t log pi_t          r_t = pi_t / pi_old_t, sg: no gradient

No token is left out of the gradient, as PPO leaves out rare ones whose ratio has run away; their weight is bounded
instead. The paper sets no lower bound (eps_low >= 1) and tunes eps_high. At r = 1 it is the plain policy gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import LossInputs, PolicyLossSpec

if TYPE_CHECKING:
    import torch


def _loss(inputs: LossInputs) -> torch.Tensor:
    low, high = inputs.clip
    # The bounds of the exponent only keep it finite; the clip below decides.
    ratio = (inputs.log_probs.detach() - inputs.old_log_probs).clamp(-20.0, 20.0).exp()
    return -ratio.clamp(1 - low, 1 + high) * inputs.advantages * inputs.log_probs


cispo = PolicyLossSpec(
    _loss, "the weight of the gradient is clipped, not the update", "arXiv 2506.13585", clips="weight"
)
