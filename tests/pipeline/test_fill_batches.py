"""Batches that are rolled before the first step: on fakes and a virtual clock."""

from __future__ import annotations

import pytest

from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.pipeline.ledger.audit import audit
from openrlhf_tir.pipeline.scheduler import AutoDepth, FixedDepth, depth_controller
from openrlhf_tir.pipeline.scheduler.learner_timing import LearnerTiming
from openrlhf_tir.simulation.virtual_loop import run

from .fakes import FakeLearner, FakePrompts, FakeRollout, ages, ends_of, pipeline


class Watching(FakeLearner):
    """Notes how many accepted groups are there when each step begins, those of the step included."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.there: list[int] = []

    async def step(self, batch):
        scheduler = self.pipeline.scheduler
        self.there.append(len(scheduler.buffered) + len(scheduler.current_batch))
        return await super().step(batch)


def ran(directory, **flags):
    learner = Watching()
    p = pipeline(directory, learner=learner, **flags)
    learner.pipeline = p
    run(p.run())
    return p


@pytest.mark.parametrize("mode", ["pipeline", "pipeline_drain"])
@pytest.mark.parametrize("fill", [1, 2, 3])
def test_the_first_step_waits_for_so_many_batches_and_no_later_one(tmp_path, mode, fill):
    """Groups come one a second, in order; a step takes one as well. From the second step on a batch of 2 is enough."""
    seconds = iter(range(1, 1000))
    rollout = FakeRollout(latency=lambda r: next(seconds))
    p = ran(tmp_path, mode=mode, S=2, B=2, fill=fill, rollout=rollout, max_steps=6)
    assert p.learner.there[0] == 2 * fill
    assert all(n >= 2 for n in p.learner.there) and len(p.learner.there) == 6
    assert max(ages(p.learner)) <= 2


def rarely(r) -> str:
    return "" if r.random() < 0.3 else "accuracy_high"


@pytest.mark.parametrize("depth", [6, "auto"])
def test_what_filters_drop_fills_nothing_and_the_run_goes_on(tmp_path, depth):
    flags = {"S": 2, "B": 2, "fill": 3, "depth": depth, "max_steps": 8}
    p = ran(tmp_path, rollout=FakeRollout(fate=rarely), prompts=FakePrompts(10_000), **flags)
    assert p.learner.there[0] >= 6 and len(p.learner.there) == 8
    assert max(ages(p.learner)) <= 2 and audit(p.scheduler.ledger.path).errors == []


def test_a_run_of_fewer_batches_or_prompts_does_not_wait_for_more(tmp_path):
    assert ran(tmp_path / "steps", S=2, B=2, fill=3, max_steps=2).learner.version == 2
    p = ran(tmp_path / "prompts", S=2, B=2, fill=3, max_steps=9, prompts=FakePrompts(4))
    assert p.learner.version == 2 and ends_of(audit(p.scheduler.ledger.path), 4) == {"trained": 4}


@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        ({"pipeline.mode": "sync", "pipeline.fill_batches": "2"}, "pipeline.mode"),
        ({"pipeline.fill_batches": "3"}, "pipeline.max_staleness"),
        ({"pipeline.depth": "200"}, "pipeline.depth"),
    ],
)
def test_more_batches_than_can_be_under_way_are_refused(flags, fact):
    """zerotir_7b fills two batches of 128, as many as a staleness of 1 admits."""
    assert load("zerotir_7b").pipeline.fill_batches == 2
    with pytest.raises(ConfigError, match="pipeline.fill_batches = .*" + fact):
        load("zerotir_7b", flags)


def test_zerotir_can_have_a_depth_that_grows_as_the_filters_drop_more():
    """Staleness 1 admits 2 batches of 128 groups. After 256 groups of which one in 16 was kept auto wants more."""
    fixed, auto = (
        depth_controller(load("zerotir_7b", flags), LearnerTiming()) for flags in ({}, {"pipeline.depth": "auto"})
    )
    assert isinstance(fixed, FixedDepth) and not fixed.wants_more(256, 0)
    assert isinstance(auto, AutoDepth)
    for group in range(256):
        auto.group_finished(group % 16 == 0, 60.0, 128, None)
    assert auto.max_accepted(512) < 128 and auto.wants_more(512, 0)
