"""Whitening over the tokens of the global batch: A <- (A - mean) / std, every token weighing the same.

    mean = sum(A) / n        std = sqrt(max(sum(A^2) / n - mean^2, 1e-8))        n = tokens of all ranks

The tokens are those that are trained, and those that would be if filter.sample did not mask their trajectory: these
count in statistics only. Failed trajectories do not count.
Every token has the same weight, so long trajectories weigh more than short ones. Each rank computes `moments` of its
trajectories, the ranks add them up (in float64, so that the split over ranks does not show), and each whitens
its own share.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

MIN_VARIANCE = 1e-8
"""OpenRLHF's clamp, so that a batch whose advantages are all equal is not divided by 0."""


def moments(advantages: Iterable[np.ndarray], counted: Iterable[np.ndarray]) -> np.ndarray:
    """Return count, sum and sum of squares over the counted tokens. Moments of disjoint parts add up.

    Args:
        advantages: Arrays [T].
        counted: Masks [T] bool.

    Returns:
        [3] float64.
    """
    total = np.zeros(3)
    for advantage, mask in zip(advantages, counted, strict=True):
        values = advantage[mask].astype(np.float64)
        total += (len(values), values.sum(), np.square(values).sum())
    return total


def mean_and_scale(total: np.ndarray, *, no_std_norm: bool = False) -> tuple[float, float]:
    """Return the mean and 1/std of summed `moments`.

    Args:
        total: [3] float64, the sum of all ranks' moments.
        no_std_norm: Only centre: the scale is 1.0.
    """
    count, first, second = total
    if count == 0:
        return 0.0, 1.0
    mean = first / count
    variance = max(second / count - mean * mean, MIN_VARIANCE)
    return float(mean), 1.0 if no_std_norm else float(variance**-0.5)


def whiten(advantages: np.ndarray, trained: np.ndarray, mean: float, scale: float) -> np.ndarray:
    """Return [T] the whitened advantages, 0.0 where not trained."""
    return np.where(trained, (advantages - mean) * scale, 0.0)
