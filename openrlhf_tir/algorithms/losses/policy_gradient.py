"""Plain policy gradient (Williams 1992): l_t = -A_t log pi_t. No ratio, no clipping.

Unbiased on-policy. Stale data is not corrected for, unless algo.advantage.is_correction_level weighs its tokens
(truncated: TIS; masked: ICEPOP).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from .own import LossInputs


def policy_gradient(inputs: LossInputs) -> torch.Tensor:
    """Return the loss per token, [b, L-1]."""
    return -inputs.advantages * inputs.log_probs
