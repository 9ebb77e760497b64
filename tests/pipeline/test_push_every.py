"""pipeline.push_every on a virtual clock: which versions are pushed, and that staleness still is at most S."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from openrlhf_tir.config import Pipeline as PipelineConfig
from openrlhf_tir.pipeline.scheduler.core import DispatchObstacle
from openrlhf_tir.simulation.virtual_loop import run

from .fakes import FakePrompts, FakeRollout, MemoryMetrics, pipeline


def test_every_second_version_is_pushed_and_the_last(tmp_path):
    p = pipeline(tmp_path, S=2, push_every=2, max_steps=5)
    run(p.run())
    assert p.publisher.versions == [0, 2, 4, 5]


def test_only_the_row_of_a_step_with_a_push_has_the_pushs_figures(tmp_path):
    """The first row has those of version 0, which was pushed before the first step."""
    metrics = MemoryMetrics()
    run(pipeline(tmp_path, S=2, push_every=2, max_steps=5, metrics=metrics).run())
    with_a_push = [step for step, row in metrics.rows.items() if "push_s" in row]
    assert with_a_push == [1, 2, 4, 5]
    for name in ("canary_excess", "canary_max_diff", "canary_repeats", "pushes_repeated", "push_mib", "push_write_s"):
        assert [step for step, row in metrics.rows.items() if name in row] == with_a_push


def test_an_evaluation_is_of_the_weights_of_its_step(tmp_path):
    """eval.steps = 3, push_every = 2: 3 is pushed for the evaluation, and the count starts anew: 5."""
    seen = []

    async def evaluate():
        seen.append(p.rollout.version)
        return {"eval/accuracy": 0.0}

    p = pipeline(tmp_path, S=2, push_every=2, max_steps=5, eval_steps=3, evaluate=evaluate)
    run(p.run())
    assert p.publisher.versions == [0, 2, 3, 5]
    assert seen == [3]


def test_the_last_weights_are_pushed_when_the_prompts_run_out(tmp_path):
    p = pipeline(tmp_path, S=2, B=2, push_every=2, prompts=FakePrompts(6), max_steps=100)
    run(p.run())
    assert p.publisher.versions == [0, 2, 3]


def test_fewer_groups_are_in_flight_the_longer_the_last_push_is_ago(tmp_path):
    """S = 1, B = 2: four slots. One step after the push, what starts is a version old already: two slots."""
    scheduler = pipeline(tmp_path, S=1, B=2).scheduler
    scheduler.version = 1
    assert scheduler.can_dispatch()
    scheduler.dispatch(now=0.0)
    assert scheduler.can_dispatch()
    scheduler.dispatch(now=0.0)
    assert scheduler.dispatch_obstacle() is DispatchObstacle.STALENESS
    scheduler.push_finished()
    assert scheduler.can_dispatch()


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    mode=st.sampled_from(["pipeline", "pipeline_drain"]),
    S=st.integers(1, 4),
    k=st.integers(1, 5),
    B=st.integers(1, 3),
)
def test_staleness_is_bounded_and_nothing_deadlocks_whatever_k(tmp_path_factory, seed, mode, S, k, B):
    rollout = FakeRollout(
        seed, latency=lambda r: r.choice([0.1, 1.0, 9.0]), fate=lambda r: r.choice(["", "", "accuracy_high"])
    )
    p = pipeline(
        tmp_path_factory.mktemp("run"),
        mode=mode,
        S=S,
        push_every=min(k, S + 1),
        B=B,
        rollout=rollout,
        prompts=FakePrompts(30),
        max_steps=1000,
    )
    run(p.run())
    assert max((version - oldest for version, _, oldest in p.learner.trained), default=0) <= S
    assert p.publisher.versions[-1] == p.version


def test_pushing_more_seldom_than_staleness_allows_is_refused():
    with pytest.raises(ValidationError, match=r"pipeline\.push_every = 4.*push_every <= 3\b"):
        PipelineConfig(mode="pipeline", max_staleness=2, push_every=4)
