"""The loop on fakes and a virtual clock: staleness, modes, order, conservation, the end of the data, faults, resume."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_tir.pipeline.ledger.audit import audit
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.types import KEEP, Verdict

from .fakes import FakeLearner, FakePrompts, FakeRollout, ages, ends_of, fate_of, pipeline, seconds_of


def test_sync_trains_every_token_with_the_version_that_sampled_it(tmp_path):
    p = pipeline(tmp_path, mode="sync", max_steps=5)
    run(p.run())
    assert ages(p.learner) == [0] * 10
    assert p.publisher.live_at_push == [0] * 6


def test_sync_takes_rollout_plus_training_time_and_one_step_overlaps_them(tmp_path):
    """Rollout 1 s, training 1 s, push 0.1 s: sync needs 2.1 s a step; one_step hides training behind rollout: 1.1 s
    after the first."""
    sync = seconds_of(pipeline(tmp_path / "a", mode="sync", max_steps=5))
    overlapped = seconds_of(pipeline(tmp_path / "b", mode="one_step", max_steps=5))
    assert sync == pytest.approx(0.1 + 5 * 2.1)
    assert overlapped == pytest.approx(0.1 + 2.1 + 4 * 1.1)


def test_one_step_never_pushes_into_a_running_rollout(tmp_path):
    p = pipeline(tmp_path, mode="one_step", max_steps=6, rollout=FakeRollout(latency=lambda r: r.uniform(0.5, 3)))
    run(p.run())
    assert set(p.publisher.live_at_push) == {0}
    assert max(ages(p.learner)) == 1


def test_pipeline_pushes_while_groups_roll(tmp_path):
    p = pipeline(tmp_path, mode="pipeline", S=2, max_steps=6, rollout=FakeRollout(latency=lambda r: r.uniform(0.5, 3)))
    run(p.run())
    assert max(p.publisher.live_at_push) > 0


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    mode=st.sampled_from(["sync", "one_step", "pipeline", "pipeline_drain"]),
    S=st.integers(1, 4),
    B=st.integers(1, 4),
    drop=st.floats(0, 0.7),
    fault=st.floats(0, 0.3),
    slow=st.floats(0.1, 20),
)
def test_no_interleaving_breaks_staleness_conservation_or_the_ledger(
    tmp_path_factory, seed, mode, S, B, drop, fault, slow
):
    """Random latencies, drops and faults over finite data: prompts end once, staleness is at most S, no deadlock."""

    rollout = FakeRollout(seed, latency=lambda r: r.choice([0.1, 1.0, slow]), fate=fate_of(drop, fault))
    p = pipeline(
        tmp_path_factory.mktemp("run"),
        mode=mode,
        S=S if mode.startswith("pipeline") else None,
        B=B,
        rollout=rollout,
        prompts=FakePrompts(40),
        max_steps=1000,
        retries=6,  # so many tries that a batch of prompts failed for good, which ends a run, is out of chance's reach
    )
    run(p.run())
    assert max(ages(p.learner), default=0) <= p.cfg.max_staleness
    assert len(p.learner.trained) == ends_of(audit(p.scheduler.ledger.path), 40)["trained"]


def test_batches_take_the_oldest_dispatched_not_the_first_finished(tmp_path):
    """Groups 0 and 2 are slow (5 s), 1 and 3 fast: with S = 1 and B = 2 the second batch is 0 and 2 although 3 finished
    before them."""
    latencies = iter([5.0, 1.0, 5.0, 1.0] + [1.0] * 100)
    p = pipeline(tmp_path, S=1, B=2, max_steps=2, rollout=FakeRollout(latency=lambda r: next(latencies)))
    run(p.run())
    assert [key.prompt for _, key, _ in p.learner.trained] == [1, 3, 0, 2]


def test_the_last_groups_are_trained_though_they_do_not_fill_a_batch(tmp_path):
    p = pipeline(tmp_path, B=4, prompts=FakePrompts(6), max_steps=10)
    run(p.run())
    assert [v for v, _, _ in p.learner.trained] == [0, 0, 0, 0, 1, 1]


def test_a_failed_group_is_issued_again_with_a_new_key_and_given_up_after_max_reissues(tmp_path):
    fates = iter(["!env", "?timeout", "!env", ""])
    p = pipeline(
        tmp_path, B=1, prompts=FakePrompts(2), rollout=FakeRollout(fate=lambda r: next(fates)), mode="sync", retries=2
    )
    run(p.run())
    assert audit(p.scheduler.ledger.path).ended == {
        "requeued(infra)": 1,
        "requeued(timeout)": 1,
        "failed(infra)": 1,
        "trained": 1,
    }
    assert [k.prompt for _, k, _ in p.learner.trained] == [1]


def test_depth_below_the_bound_keeps_the_queue_short(tmp_path):
    p = pipeline(tmp_path, S=3, B=2, depth=2, max_steps=8)
    seen = []
    notify = p.scheduler.notify

    def watched():
        seen.append(len(p.scheduler.rolling) + len(p.scheduler.buffered))
        notify()

    p.scheduler.notify = watched
    run(p.run())
    assert max(seen) <= 2


def test_the_last_steps_start_no_group_that_cannot_be_used(tmp_path):
    p = pipeline(tmp_path, S=2, B=2, max_steps=3, save_steps=1)
    run(p.run())
    assert p.scheduler.dispatched == 6
    assert audit(p.scheduler.ledger.path).open == []


@pytest.mark.parametrize("crash_at", [0, 3, 5])
def test_after_a_crash_a_resume_trains_every_prompt_exactly_once(tmp_path, crash_at):
    prompts, flags = 30, {"B": 2, "S": 2, "save_steps": 2, "max_steps": 100}

    def latency(r):
        return r.choice([0.2, 1.0, 4.0])

    first = pipeline(
        tmp_path,
        prompts=FakePrompts(prompts),
        learner=FakeLearner(crash_at=crash_at),
        rollout=FakeRollout(1, latency),
        **flags,
    )
    with pytest.raises(ExceptionGroup):
        run(first.run())
    second = pipeline(tmp_path, prompts=FakePrompts(prompts), rollout=FakeRollout(2, latency), **flags)
    run(second.run(resume=True))
    report = audit(second.scheduler.ledger.path)
    assert report.errors == [] and report.open == []
    assert sorted(report.trained) == [(0, i) for i in range(prompts)]
    assert max(ages(second.learner)) <= 2


class SometimesSilent(FakeRollout):
    """Every third prompt's group has no token of the model, so it has no version; `verdict` is that of such a group."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__()
        self.verdict = verdict

    async def run_group(self, key, task):
        meta, group = await super().run_group(key, task)
        if key.prompt % 3:
            return meta, group
        return replace(meta, oldest_version=None, model_tokens=[0, 0], verdict=self.verdict), group


@pytest.mark.parametrize(
    ("verdict", "ends"),
    [
        (Verdict(False, "no_model_tokens"), {"trained": 14, "filtered(no_model_tokens)": 7}),
        (KEEP, {"trained": 21}),  # a group of the user's own that its filter keeps
    ],
    ids=["dropped", "kept"],
)
def test_groups_without_a_model_token_end_neither_the_run_nor_its_resume(tmp_path, verdict, ends):
    flags = {"B": 2, "S": 1, "save_steps": 1, "max_steps": 100}
    first = pipeline(
        tmp_path,
        prompts=FakePrompts(21),
        rollout=SometimesSilent(verdict),
        learner=FakeLearner(crash_at=3),
        **flags,
    )
    with pytest.raises(ExceptionGroup):
        run(first.run())
    second = pipeline(tmp_path, prompts=FakePrompts(21), rollout=SometimesSilent(verdict), **flags)
    run(second.run(resume=True))
    assert ends_of(audit(second.scheduler.ledger.path), 21) == ends
