"""Count, mean and quantiles of a prometheus_client histogram. Its size does not grow with the observations."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import Histogram
from prometheus_client.metrics_core import Sample


def histogram(name: str, documentation: str, bounds: Sequence[float]) -> Histogram:
    """Return a histogram that is in no registry; whoever exposes it collects it."""
    return Histogram(name, documentation, buckets=bounds, registry=None)


def count(values: Histogram) -> int:
    """Return the number of observations."""
    (sample,) = _samples(values, "_count")
    return int(sample.value)


def mean(values: Histogram) -> float:
    """Return the mean observation; 0.0 before the first one."""
    (total,) = _samples(values, "_sum")
    observations = count(values)
    return total.value / observations if observations else 0.0


def quantile(values: Histogram, q: float) -> float:
    """Return an upper bound of the q-quantile: the upper bound of the bucket that contains it.

    It is inf above the last bound, and 0.0 before the first observation.
    """
    rank = q * count(values)
    cumulative = [(float(sample.labels["le"]), sample.value) for sample in _samples(values, "_bucket")]
    return next((bound for bound, observations in cumulative if observations and observations >= rank), 0.0)


def _samples(values: Histogram, suffix: str) -> list[Sample]:
    (family,) = values.collect()
    return [sample for sample in family.samples if sample.name == family.name + suffix]
