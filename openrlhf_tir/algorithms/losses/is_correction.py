"""Importance weights that correct for staleness and for differences between learner and engine.

They are OpenRLHF's, for the losses that are not its PPO loss.

    s = pi_old / mu of a token (level token), or its geometric mean over a sequence (level seq)
    mu: the policy that sampled
    mode clip: w = clip(pi_old / mu, low, high)                         TIS
    mode mask: w = pi_old / mu where low <= s <= high, else 0           ICEPOP, seq-mask-TIS

In mode mask, gating binary_kl or tv puts that divergence of the sampled token (level seq: its mean) in the place of s;
w stays a ratio. Config accepts mode clip with level token and gating ratio only. A per-token loss is multiplied by w.
openrlhf/models/loss.py (0.11.2) has the same in the middle of PolicyLoss.forward; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def band(threshold: Sequence[float]) -> Sequence[float]:
    """Return low and high. A single threshold is the upper bound, as on openrlhf's command line."""
    return (0.0, threshold[0]) if len(threshold) == 1 else threshold


def importance_weights(
    old: torch.Tensor,
    rollout: torch.Tensor,
    mask: torch.Tensor,
    *,
    level: str,
    mode: str,
    gating: str,
    threshold: Sequence[float],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights and the share of tokens (or sequences) outside the band.

    Args:
        old: [b, L-1], log-probabilities under pi_old.
        rollout: [b, L-1], log-probabilities under mu.
        mask: [b, L-1], 1.0 where the token is trained.
        level: algo.advantage.is_correction_level, "token" or "seq".
        mode: algo.advantage.is_correction_mode.
        gating: algo.advantage.is_correction_gating.
        threshold: algo.advantage.is_correction_threshold, low and high or high alone.

    Returns:
        Weights [b, L-1], and a scalar.
    """
    seq = level == "seq"
    low, high = band(threshold)
    log_ratio = (old - rollout).detach()
    ratio = log_ratio.exp()
    if gating == "ratio":
        stat = _sequence_mean(log_ratio, mask).exp() if seq else ratio
    else:
        p, q = (x.exp().clamp(1e-6, 1 - 1e-6) for x in (rollout, old.detach()))
        stat = (p - q).abs() if gating == "tv" else p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
        stat = _sequence_mean(stat, mask) if seq else stat
    outside = (stat < low) | (stat > high)
    # Not a product: a ratio beyond float32 is infinite, and infinite times 0 is NaN.
    weights = ratio.clamp(low, high) if mode == "clip" else ratio.masked_fill(outside, 0.0)
    share = outside.float().mean() if seq else (outside * mask).sum() / mask.sum().clamp(min=1e-8)
    return weights, share


def _sequence_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mean over each row's masked positions, [b, 1]."""
    return ((values * mask).sum(-1) / mask.sum(-1).clamp(min=1e-8))[:, None]
