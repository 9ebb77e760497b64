"""Prometheus metrics of a rollout actor: its engine, queue, environments and sessions.

Every name is listed in FAMILIES, so that a dashboard can be checked against it without an actor. Nothing is counted
here: the parts count, and are asked at each scrape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..request_queue import RequestQueue

FAMILIES = {
    "tir_engine_running": ("gauge", "requests that the engine is decoding"),
    "tir_engine_waiting": ("gauge", "requests in vLLM's own queue"),
    "tir_engine_kv_usage": ("gauge", "share of the KV cache in use, 0 to 1"),
    "tir_engine_paused": ("gauge", "1 while requests are frozen"),
    "tir_engine_version": ("gauge", "learner updates behind the weights that sample now"),
    "tir_engine_tokens_generated": ("counter", "tokens sampled"),
    "tir_engine_prefix_tokens": ("counter", "prompt tokens looked up in the prefix cache"),
    "tir_engine_prefix_hits": ("counter", "prompt tokens found there"),
    "tir_engine_preemptions": ("counter", "requests that lost their KV to others and were computed again"),
    "tir_engine_push_pause_s": ("gauge", "how long the last weight push froze requests"),
    "tir_engine_busy_s": ("counter", "seconds with requests and without a pause"),
    "tir_engine_prefill_s": ("counter", "seconds of those in steps that computed tokens of prompts"),
    "tir_engine_paused_s": ("counter", "seconds in which requests were frozen"),
    "tir_engine_idle_s": ("counter", "seconds without a request"),
    "tir_queue_waiting": ("gauge", "requests waiting in the actor's queue"),
    "tir_queue_running": ("gauge", "requests handed to the engine"),
    "tir_queue_age_seconds": ("gauge", "how long the oldest waiting request has waited"),
    "tir_queue_wait_seconds": ("histogram", "from a request to its slot at the engine"),
    "tir_queue_batch_size": ("histogram", "requests per flush; empty with rollout.max_wait_ms = 0"),
    "tir_env_sessions": ("gauge", "open sessions, by env"),
    "tir_env_in_flight": ("gauge", "calls being answered, by env"),
    "tir_env_waiting": ("gauge", "calls waiting for a slot, by env"),
    "tir_env_down": ("gauge", "servers that get no calls because they failed, by env"),
    "tir_env_calls": ("counter", "finished calls, by env and outcome"),
    "tir_agent_sessions": ("gauge", "open traced sessions"),
    "tir_agent_tasks_offered": ("gauge", "tasks that no external agent has taken"),
}
"""Name -> (kind, help). Prometheus appends _total to counters, _bucket, _sum and _count to histograms."""
disable_created_metrics()  # no series with the time at which a histogram began


class HasStats(Protocol):
    """A part with figures by name."""

    def stats(self) -> Mapping[str, float]: ...


class Exposition(Collector):
    """The metrics of one actor, collected at each scrape."""

    def __init__(self, engine: HasStats, queue: RequestQueue, envs: HasStats, agents: HasStats) -> None:
        self.engine = engine
        self.queue = queue
        self.envs = envs
        self.agents = agents
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> str:
        """Return the metrics in Prometheus's text format."""
        return generate_latest(self._registry).decode()

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics; called by prometheus_client."""
        engine = self.engine.stats()
        queue = self.queue.stats()
        yield from (_single(f"tir_engine_{name}", value) for name, value in engine.items())
        yield from (_single(f"tir_agent_{name}", value) for name, value in self.agents.stats().items())
        yield _single("tir_queue_waiting", queue["queue_waiting"])
        yield _single("tir_queue_running", queue["queue_running"])
        yield _single("tir_queue_age_seconds", queue["queue_age_s"])
        yield from (*self.queue.waits_s.collect(), *self.queue.batch_sizes.collect())
        yield from _by_env(self.envs.stats())


def _family(name: str, labels: tuple[str, ...] = ()) -> GaugeMetricFamily | CounterMetricFamily:
    kind, text = FAMILIES[name]
    return (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(name, text, labels=labels)


def _single(name: str, value: float) -> Metric:
    family = _family(name)
    family.add_metric((), value)
    return family


def _by_env(stats: Mapping[str, float]) -> Iterable[Metric]:
    """Return families with labels: `sessions/ENV` becomes tir_env_sessions{env}, and `calls/ENV/OUTCOME`
    tir_env_calls_total{env, outcome}."""
    families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    for key, value in stats.items():
        name, *labels = key.split("/")
        family = families.setdefault(name, _family(f"tir_env_{name}", ("env", "outcome")[: len(labels)]))
        family.add_metric(labels, value)
    return families.values()
