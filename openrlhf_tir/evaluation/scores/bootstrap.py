"""Bootstrap: figures that are ratios of sums over problems -> their intervals. Efron 1979; percentile intervals.

Problems are drawn, not samples: the n samples of a problem are alike, and as independent ones they would make intervals
too narrow (clustered errors: Miller 2024, arXiv 2411.00640). The interval says what other problems of the same kind
would give, not what another training run would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

RESAMPLES = 2000
LEVEL = 0.95
_AT_ONCE = 100
"""Resamples in memory at once: 100 x 7,405 problems are 6 MB."""


class Ratio(NamedTuple):
    """Both [P] float: the figure is num.sum() / den.sum(). A mean over problems has ones in `den`, a problem that has
    no say a 0 in both."""

    num: np.ndarray
    den: np.ndarray


class Interval(NamedTuple):
    """A figure with the interval that holds it; all None where no problem has a say, and the interval where one has:
    one problem says nothing of what others would give."""

    value: float | None
    low: float | None
    high: float | None


def intervals(
    ratios: Mapping[str, Ratio], *, seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL
) -> dict[str, Interval]:
    """The figures and their percentile intervals from one set of resamples. Resamples in which a figure has no
    denominator say nothing of it."""
    if not ratios:
        return {}
    num = np.stack([np.asarray(r.num, float) for r in ratios.values()], axis=1)  # [P, figures]
    den = np.stack([np.asarray(r.den, float) for r in ratios.values()], axis=1)
    problems, rng = len(num), np.random.default_rng(seed)
    drawn = []
    for start in range(0, resamples if problems else 0, _AT_ONCE):
        counts = rng.multinomial(
            problems, np.full(problems, 1 / problems), size=min(_AT_ONCE, resamples - start)
        ).astype(float)
        drawn.append(_divided(counts @ num, counts @ den))
    spread = np.concatenate(drawn) if drawn else np.zeros((0, len(ratios)))
    values = _divided(num.sum(0), den.sum(0))
    have_a_say = (den > 0).sum(0)
    return {
        name: _interval(values[i], spread[:, i], level)
        if have_a_say[i] != 1
        else Interval(float(values[i]), None, None)
        for i, name in enumerate(ratios)
    }


def _divided(num: np.ndarray, den: np.ndarray) -> np.ndarray:
    return np.divide(num, den, out=np.full(num.shape, np.nan), where=den > 0)


def _interval(value: float, spread: np.ndarray, level: float) -> Interval:
    known = spread[~np.isnan(spread)]
    if np.isnan(value) or not len(known):
        return Interval(None, None, None)
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(value), float(low), float(high))
