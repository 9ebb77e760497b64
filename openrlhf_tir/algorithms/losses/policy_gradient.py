"""Plain policy gradient (Williams 1992): l_t = -A_t log pi_t. No ratio, no clipping.

Unbiased on-policy. Stale data is not corrected for, unless algo.advantage.is_correction_level weighs its tokens
(truncated: TIS; masked: ICEPOP).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import LossInputs, PolicyLossSpec

if TYPE_CHECKING:
    import torch


def _loss(inputs: LossInputs) -> torch.Tensor:
    return -inputs.advantages * inputs.log_probs


policy_gradient = PolicyLossSpec(_loss, "the plain policy gradient, without a ratio", "Williams 1992", clips=None)
