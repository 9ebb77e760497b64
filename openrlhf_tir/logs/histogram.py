"""What a prometheus_client histogram has seen: count, mean, quantiles. After 100 million requests as after ten."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import Histogram
from prometheus_client.metrics_core import Sample


def histogram(name: str, documentation: str, bounds: Sequence[float]) -> Histogram:
    """In no registry: whoever exposes it collects it."""
    return Histogram(name, documentation, buckets=bounds, registry=None)


def count(h: Histogram) -> int:
    (found,) = _samples(h, "_count")
    return int(found.value)


def mean(h: Histogram) -> float:
    """0.0 before the first observation."""
    (total,) = _samples(h, "_sum")
    return total.value / n if (n := count(h)) else 0.0


def quantile(h: Histogram, q: float) -> float:
    """An upper bound of the q-quantile: the bound of its bucket; inf above the last, 0.0 before any observation."""
    rank = q * count(h)
    below = [(float(s.labels["le"]), s.value) for s in _samples(h, "_bucket")]
    return next((bound for bound, n in below if n and n >= rank), 0.0)


def _samples(h: Histogram, suffix: str) -> list[Sample]:
    (family,) = h.collect()
    return [s for s in family.samples if s.name == family.name + suffix]
