"""Modes are presets: what each fixes, what it does on a virtual clock, which other combinations are refused and why."""

from __future__ import annotations

import re

import pytest

from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.simulation.virtual_loop import run

from .fakes import FakeLearner, FakeRollout, pipeline

PRESETS = {"sync": (0, True), "one_step": (1, True), "pipeline": (4, False), "pipeline_drain": (1, True)}
"""mode -> (default S, whether a push waits until nothing rolls)."""


class Watched(FakeLearner):
    """Notes at each step how many groups roll when it begins."""

    def __init__(self, rollout: FakeRollout, seconds: float) -> None:
        super().__init__(seconds)
        self.rollout, self.live = rollout, []

    async def step(self, batch):
        self.live.append(self.rollout.live)
        return await super().step(batch)


def watched(tmp_path, mode: str, S: int | None = None):
    """Groups of 0.5 to 3 s, steps of 1 s, B = 4; -> (groups rolling as each step begins, most at once, groups rolling
    at each push)."""
    rollout = FakeRollout(latency=lambda r: r.uniform(0.5, 3))
    learner = Watched(rollout, 1.0)
    p = pipeline(tmp_path, mode=mode, S=S, B=4, max_steps=8, rollout=rollout, learner=learner)
    most = 0
    notify = p.scheduler.notify

    def look() -> None:
        nonlocal most
        most = max(most, len(p.scheduler.rolling))
        notify()

    p.scheduler.notify = look
    run(p.run())
    return learner.live, most, p.publisher.live_at_push


@pytest.mark.parametrize("mode", PRESETS)
def test_a_mode_fixes_staleness_and_how_weights_are_pushed(mode):
    cfg = load(None, {"pipeline.mode": mode}).pipeline
    assert (cfg.requested_staleness, cfg.drain) == PRESETS[mode]


def test_sync_rolls_one_batch_and_trains_when_all_of_it_is_there(tmp_path):
    live, most, at_push = watched(tmp_path, "sync")
    assert set(live) == {0} and most == 4 and set(at_push) == {0}


def test_one_step_rolls_the_next_batch_while_this_one_trains_and_stops_there(tmp_path):
    live, most, at_push = watched(tmp_path, "one_step")
    assert most == 4 and set(at_push) == {0}
    # the batch is a barrier: all of it is there when its step begins, and the next is dispatched then
    assert live[:-1] == [0] * 7


def test_pipeline_trains_the_first_b_groups_and_pushes_into_the_others(tmp_path):
    live, most, at_push = watched(tmp_path, "pipeline", S=2)
    assert most == 12 and min(live[:5]) > 0 and max(at_push) > 0  # (S + 1) B under way, a step does not wait for them


def test_pipeline_drain_streams_too_but_pushes_only_when_nothing_rolls(tmp_path):
    live, most, at_push = watched(tmp_path, "pipeline_drain", S=2)
    assert most == 12 and max(live) > 0 and set(at_push) == {0}


@pytest.mark.parametrize(
    ("flags", "setting", "values"),
    [
        ({"mode": "sync", "max_staleness": 1}, "max_staleness", {"'sync'", "0"}),
        ({"mode": "one_step", "max_staleness": 2}, "max_staleness", {"'one_step'", "1", "'pipeline'"}),
        ({"mode": "one_step", "max_staleness": 0}, "max_staleness", {"'one_step'", "1", "'pipeline'"}),
        ({"mode": "pipeline", "max_staleness": 0}, "mode", {"'pipeline'", "1", "'sync'"}),
        ({"mode": "pipeline_drain", "max_staleness": 0}, "mode", {"'pipeline_drain'", "1", "'sync'"}),
        ({"mode": "sync", "depth": 128}, "depth", {"'sync'"}),
        ({"mode": "one_step", "depth": "auto"}, "depth", {"'one_step'"}),
        ({"mode": "sync", "push_every": 3}, "push_every", {"2", "0", "1"}),
        ({"mode": "pipeline", "max_staleness": 2, "push_every": 5}, "push_every", {"4", "2", "3"}),
        ({"mode": "pipeline", "depth": 5}, "depth", {"128"}),
    ],
)
def test_a_combination_that_is_no_preset_is_refused_with_the_values_that_are(flags, setting, values):
    with pytest.raises(ConfigError) as e:
        load(None, {f"pipeline.{name}": value for name, value in flags.items()})
    (problem,) = e.value.problems
    assert problem.setting == f"pipeline.{setting}"
    assert values <= set(re.findall(r"'\w+'|\d+", problem.message))
    assert "\n" not in str(e.value)
