"""Whitening over the trained tokens of the global batch: A <- (A - mean) / std, every token weighing the same.

    mean = sum(A) / n        std = sqrt(max(sum(A^2) / n - mean^2, 1e-8))        n = trained tokens of all ranks

Long trajectories weigh more than short ones: that makes it token-weighted. A rank computes `moments` of the tokens it
trains, the ranks add them up (float64, so the split over ranks does not show), and each whitens its own share."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

MIN_VARIANCE = 1e-8
"""OpenRLHF's clamp: a batch without any difference in its advantages is not blown up by 1/0."""


def moments(advantages: Iterable[np.ndarray], trained: Iterable[np.ndarray]) -> np.ndarray:
    """[3] float64: count, sum and sum of squares over trained tokens. Moments of disjoint parts add."""
    total = np.zeros(3)
    for adv, mask in zip(advantages, trained, strict=True):
        chosen = adv[mask].astype(np.float64)
        total += (len(chosen), chosen.sum(), np.square(chosen).sum())
    return total


def mean_and_scale(total: np.ndarray, *, no_std_norm: bool = False) -> tuple[float, float]:
    """(mean, 1/std) of summed `moments`; the scale is 1.0 with `no_std_norm`, which only centres."""
    count, first, second = total
    if count == 0:
        return 0.0, 1.0
    mean = first / count
    variance = max(second / count - mean * mean, MIN_VARIANCE)
    return float(mean), 1.0 if no_std_norm else float(variance**-0.5)


def whiten(adv: np.ndarray, trained: np.ndarray, mean: float, scale: float) -> np.ndarray:
    """[T] whitened where trained, 0.0 elsewhere."""
    return np.where(trained, (adv - mean) * scale, 0.0)
