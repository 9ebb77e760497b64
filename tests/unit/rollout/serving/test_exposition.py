"""What /metrics says, and that the sample dashboard asks for nothing else."""

from __future__ import annotations

import json
import re

import pytest

from openrlhf_tir.rollout.serving.metrics import FAMILIES, Exposition
from openrlhf_tir.telemetry.histogram import histogram

SUFFIXES = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}


class Fixed:
    """A part with these figures."""

    def __init__(self, **figures: float) -> None:
        self.figures = figures
        self.waits_s = histogram("tir_queue_wait_seconds", "w", (0.01, 0.1))
        self.batch_sizes = histogram("tir_queue_batch_size", "b", (1, 2))

    def stats(self):
        return self.figures


@pytest.fixture
def exposition() -> Exposition:
    names = (
        "running", "waiting", "kv_usage", "tokens_generated", "prefix_tokens", "prefix_hits", "preemptions", "version",
        "paused", "push_pause_s", "busy_s", "prefill_s", "paused_s", "idle_s",
    )  # fmt: skip
    engine = Fixed(**{name: i + 1.0 for i, name in enumerate(names)})
    queue = Fixed(queue_waiting=3, queue_running=2, queue_age_s=0.5, batch_size_mean=1)
    for wait in (0.005, 0.05, 5.0):
        queue.waits_s.observe(wait)
    kinds = ("sessions", "in_flight", "waiting", "down")
    envs = Fixed(
        **{f"{kind}/search": 1.0 for kind in kinds},
        **{"calls/search/ok": 7.0, "calls/search/timeout": 1.0, "sessions/math": 4.0},
    )
    return Exposition(engine, queue, envs, Fixed(sessions=5, tasks_offered=1))


def samples(exposition: Exposition) -> dict[str, float]:
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in exposition.text().splitlines()
        if not line.startswith("#")
    }


def test_figures_of_engine_queue_environments_and_sessions_are_told(exposition):
    told = samples(exposition)
    assert told["tir_engine_tokens_generated_total"] == 4.0
    assert told["tir_queue_age_seconds"] == 0.5
    assert told['tir_env_calls_total{env="search",outcome="ok"}'] == 7.0
    assert told['tir_env_sessions{env="math"}'] == 4.0
    assert told["tir_agent_tasks_offered"] == 1.0


def test_waits_are_a_cumulative_histogram(exposition):
    told = samples(exposition)
    assert [told[f'tir_queue_wait_seconds_bucket{{le="{le}"}}'] for le in ("0.01", "0.1", "+Inf")] == [1, 2, 3]
    assert told["tir_queue_wait_seconds_sum"] == pytest.approx(5.055)


def test_every_family_that_is_listed_is_told_and_no_other(exposition):
    told = {name.partition("{")[0] for name in samples(exposition)}
    listed = {name + suffix for name, (kind, _) in FAMILIES.items() for suffix in SUFFIXES[kind]}
    assert told == listed


def test_the_dashboard_asks_only_for_metrics_that_exist(repo):
    dashboard = json.loads((repo / "docs/grafana/rollout.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for t in panel.get("targets", [])
        for name in re.findall(r"\btir_\w+", t["expr"])
    }
    listed = {name + suffix for name, (kind, _) in FAMILIES.items() for suffix in SUFFIXES[kind]}
    assert asked <= listed, f"not exported: {sorted(asked - listed)}"
    assert {name for name in FAMILIES if not any(a.startswith(name) for a in asked)} == set(), (
        "exported, and on no panel"
    )


def test_the_panels_do_not_overlap_and_all_read_the_datasource_that_the_user_chooses(repo):
    dashboard = json.loads((repo / "docs/grafana/rollout.json").read_text())
    cells = [
        (p["gridPos"]["x"] + dx, p["gridPos"]["y"] + dy)
        for p in dashboard["panels"]
        for dx in range(p["gridPos"]["w"])
        for dy in range(p["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    assert {p["datasource"]["uid"] for p in dashboard["panels"]} == {"${datasource}"}
    assert len({p["id"] for p in dashboard["panels"]}) == len(dashboard["panels"])
