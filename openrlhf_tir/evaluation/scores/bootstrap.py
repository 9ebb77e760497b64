"""Bootstrap intervals of figures that are ratios of sums over problems. Efron 1979; percentile intervals.

Problems are resampled, not samples. The n samples of a problem are alike; treated as independent they would make the
intervals too narrow (clustered errors: Miller 2024, arXiv 2411.00640). An interval covers the choice of problems, not
another training run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

RESAMPLES = 2000
LEVEL = 0.95
_RESAMPLES_AT_ONCE = 100
"""Resamples in memory at the same time: 100 of 7,405 problems are 6 MB."""


class Ratio(NamedTuple):
    """A figure: num.sum() / den.sum().

    For a mean over problems `den` is all ones. A problem that does not count has 0 in both.

    Attributes:
        num: [P] float, numerator of each problem.
        den: [P] float, denominator of each problem.
    """

    num: np.ndarray
    den: np.ndarray


class Interval(NamedTuple):
    """A figure with its interval.

    Attributes:
        value: The figure; None if no problem counts.
        low: Lower end of the interval. None if fewer than two problems count: one says nothing about others.
        high: Upper end of the interval, or None.
    """

    value: float | None
    low: float | None
    high: float | None


def intervals(ratios: Mapping[str, Ratio], *, seed: int = 0) -> dict[str, Interval]:
    """Return figures with percentile intervals, all from the same resamples.

    A resample in which a figure's denominator is 0 is left out of that figure's interval.

    Args:
        ratios: The figures by name, over the same problems.
        seed: Seed of the resamples.
    """
    if not ratios:
        return {}
    num = np.stack([np.asarray(ratio.num, float) for ratio in ratios.values()], axis=1)  # [P, figures]
    den = np.stack([np.asarray(ratio.den, float) for ratio in ratios.values()], axis=1)
    problems = len(num)
    rng = np.random.default_rng(seed)
    blocks = []
    for start in range(0, RESAMPLES if problems else 0, _RESAMPLES_AT_ONCE):
        size = min(_RESAMPLES_AT_ONCE, RESAMPLES - start)
        # [size, P]: how often each problem was drawn.
        counts = rng.multinomial(problems, np.full(problems, 1 / problems), size=size).astype(float)
        blocks.append(_divide(counts @ num, counts @ den))
    resampled = np.concatenate(blocks) if blocks else np.zeros((0, len(ratios)))
    values = _divide(num.sum(0), den.sum(0))
    num_counting = (den > 0).sum(0)
    result = {}
    for column, name in enumerate(ratios):
        if num_counting[column] == 1:
            result[name] = Interval(float(values[column]), None, None)
        else:
            result[name] = _interval(values[column], resampled[:, column])
    return result


def _divide(num: np.ndarray, den: np.ndarray) -> np.ndarray:
    """Return num / den; NaN where den is 0."""
    return np.divide(num, den, out=np.full(num.shape, np.nan), where=den > 0)


def _interval(value: float, resampled: np.ndarray) -> Interval:
    known = resampled[~np.isnan(resampled)]
    if np.isnan(value) or not len(known):
        return Interval(None, None, None)
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(value), float(low), float(high))
