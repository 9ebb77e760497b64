"""Adaptive depth in the loop, on fakes and a virtual clock: the learner is fed, surplus conserved, S never exceeded."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from openrlhf_tir.pipeline.ledger.audit import audit
from openrlhf_tir.pipeline.loop import Pipeline
from openrlhf_tir.simulation.virtual_loop import run

from .fakes import FakeLearner, FakePrompts, FakeRollout, ages, ends_of, pipeline, seconds_of


def rarely(r) -> str:
    return "" if r.random() < 0.1 else "accuracy_high"


@pytest.mark.slow
@pytest.mark.extended
def test_at_ten_percent_acceptance_auto_feeds_the_learner_and_a_fixed_depth_starves_it(tmp_path):
    """B = 4, groups and steps of 1 s, engines without limit. S = 2 gives a fixed depth 12 slots: 1.2 accepted a second,
    3.3 s a step. With risk 0.01 some 60 may roll, where the learner takes 40 at its fastest; chance and the small batch
    cost the rest."""

    def of(name: str, depth):
        rollout = FakeRollout(latency=lambda r: 1.0, fate=rarely)
        return pipeline(
            tmp_path / name,
            S=2,
            B=4,
            depth=depth,
            max_steps=200,
            rollout=rollout,
            prompts=FakePrompts(100_000),
            learner=FakeLearner(1.0),
        )

    fixed, auto = of("fixed", 12), of("auto", "auto")
    assert seconds_of(fixed) > 200 * 3.0
    assert seconds_of(auto) < 200 * 1.9
    assert max(ages(auto.learner)) <= 2
    assert audit(auto.scheduler.ledger.path).errors == []
    assert audit(auto.scheduler.ledger.path).ended["requeued(surplus)"] <= 0.01 * 200 * 4


def test_when_everything_is_accepted_at_once_the_excess_is_surplus_and_its_prompts_come_back(tmp_path):
    """Thousands rejected, then all accepted: more arrive than S has room for. The excess is queued again and trained in
    the end."""
    finished = Counter()

    def fate(r):
        finished["n"] += 1
        return "accuracy_high" if finished["n"] <= 600 else ""

    flags = {"S": 1, "B": 2, "depth": "auto", "max_steps": 1000, "endless": True}
    p = pipeline(tmp_path, rollout=FakeRollout(fate=fate), prompts=FakePrompts(700), learner=FakeLearner(0.01), **flags)
    run(p.run())
    report = audit(p.scheduler.ledger.path)
    assert report.errors == [] and report.open == []
    assert report.ended["requeued(surplus)"] > 0
    assert report.ended["trained"] + report.ended["filtered(accuracy_high)"] == 700
    assert max(ages(p.learner)) <= 1


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
# surplus after the last prompt
@example(
    seed=0, mode="pipeline", S=4, B=4, push_every=1, low=0.0, high=1.0, period=46, fault=0.0, slow=1.0, learner=1.0
)
@given(
    seed=st.integers(0, 10_000),
    mode=st.sampled_from(["pipeline", "pipeline_drain"]),
    S=st.integers(1, 4),
    B=st.integers(1, 4),
    push_every=st.integers(1, 3),
    low=st.floats(0, 0.5),
    high=st.floats(0.5, 1),
    period=st.integers(5, 80),
    fault=st.floats(0, 0.2),
    slow=st.floats(0.1, 20),
    learner=st.floats(0.01, 3),
)
def test_no_interleaving_breaks_staleness_conservation_or_the_ledger(
    tmp_path_factory, seed, mode, S, B, push_every, low, high, period, fault, slow, learner
):
    """Acceptance that swings between `low` and `high` every `period` groups, random latencies, faults, finite data."""
    seen = Counter()

    def fate(r):
        seen["n"] += 1
        x, share = r.random(), high if seen["n"] // period % 2 else low
        return "!env" if x < fault / 2 else "?timeout" if x < fault else "" if r.random() < share else "accuracy_low"

    p = pipeline(
        tmp_path_factory.mktemp("run"),
        mode=mode,
        S=S,
        B=B,
        push_every=min(push_every, S + 1),
        depth="auto",
        rollout=FakeRollout(seed, latency=lambda r: r.choice([0.1, 1.0, slow]), fate=fate),
        prompts=FakePrompts(80),
        learner=FakeLearner(learner),
        max_steps=1000,
        retries=6,  # so many tries that a batch of prompts failed for good, which ends a run, is out of chance's reach
    )
    run(p.run())
    assert max(ages(p.learner), default=0) <= S
    report = audit(p.scheduler.ledger.path)
    final = ends_of(report, 80)
    assert len(p.learner.trained) == final["trained"] == p.scheduler.ended["trained"]
    assert p.scheduler.ended.total() == p.scheduler.dispatched == report.ended.total()


def test_while_the_gate_waits_auto_starts_no_more_than_the_next_step_needs(tmp_path):
    """S = 2, B = 4. The first group takes 100 s, the others 1 s, half of them are dropped; a step and push take .1 s.
    After two a batch is ready and the gate waits for the first. Two batches, one for this step and one for the next,
    are 8 accepted groups; a number of groups goes on to the 12 that staleness allows."""

    class FirstIsSlow(FakeRollout):
        async def run_group(self, key, task):
            self.latency = lambda r: 100.0 if key.prompt == 0 else 1.0
            return await super().run_group(key, task)

    def expected_at_each_start(name: str, depth) -> tuple[Pipeline, list[float]]:
        """Groups buffered and, at one of two, those rolling, whenever one started while the gate waited."""
        rollout = FirstIsSlow(fate=lambda r: "" if r.random() < 0.5 else "accuracy_high")
        flags = {"S": 2, "B": 4, "depth": depth, "max_steps": 12}
        p = pipeline(tmp_path / name, rollout=rollout, learner=FakeLearner(0.01), **flags)
        found, dispatch = [], p.scheduler.dispatch

        def watched(now: float):
            if p.observer.current_phase == "wait for gate" and now < 100.0:
                found.append(len(p.scheduler.buffered) + 0.5 * len(p.scheduler.rolling))
            return dispatch(now)

        p.scheduler.dispatch = watched
        run(p.run())
        return p, found

    auto, by_auto = expected_at_each_start("auto", "auto")
    _, by_number = expected_at_each_start("fixed", 12)
    assert max(by_auto, default=0.0) < 9 and max(by_number) >= 10
    assert len(auto.learner.trained) == 48 and max(ages(auto.learner)) <= 2
    report = audit(auto.scheduler.ledger.path)
    assert report.ended["requeued(surplus)"] == 0 and report.errors == []


def test_a_run_that_ends_at_max_steps_gives_back_what_it_admitted_too_much(tmp_path):
    p = pipeline(
        tmp_path,
        S=2,
        B=4,
        depth="auto",
        max_steps=20,
        rollout=FakeRollout(fate=rarely),
        prompts=FakePrompts(100_000),
        learner=FakeLearner(0.1),
    )
    run(p.run())
    report = audit(p.scheduler.ledger.path)
    assert report.errors == [] and report.open == []
    assert report.ended["trained"] == 80 and report.ended["requeued(end_of_run)"] > 0
    assert p.scheduler.slots_taken == 0 and not p.group_tasks
