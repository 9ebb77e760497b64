"""Prometheus metrics of one environment server, in their own registry: several apps can live in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)


class ServerMetrics:
    """Counts steps by outcome, times them, and reads gauges when it is scraped."""

    def __init__(self, env: str, gauges: Mapping[str, Callable[[], float]]) -> None:
        """Create the metrics.

        Args:
            env: Value of the label `env`.
            gauges: A function for each gauge's name; it is called at every scrape.
        """
        self._registry = CollectorRegistry()
        self._env = env
        self._steps = Counter("env_steps", "Answered steps by outcome", ["env", "outcome"], registry=self._registry)
        self._seconds = Histogram(
            "env_step_seconds", "From receipt to reply, waiting included", ["env"], registry=self._registry
        )
        ProcessCollector(registry=self._registry)
        for name, read in gauges.items():
            Gauge(f"env_{name}", f"{name} now", registry=self._registry).set_function(read)

    def count(self, outcome: str, seconds: float) -> None:
        """Record an answered step and the seconds from its receipt to its reply."""
        self._steps.labels(self._env, outcome).inc()
        self._seconds.labels(self._env).observe(seconds)

    def render(self) -> tuple[bytes, int, None, str]:
        """Return body, status, headers and media type, the positional arguments of `Response`."""
        return generate_latest(self._registry), 200, None, CONTENT_TYPE_LATEST
