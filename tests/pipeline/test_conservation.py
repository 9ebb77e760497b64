"""The law of conservation under random interleavings, crashes and resumes; and that a broken law stops the run with a
diagnosis.

acquired = trained + filtered + failed + requeued + surplus + rolling + buffered + training
"""

from __future__ import annotations

import asyncio
from itertools import chain, repeat
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from openrlhf_tir.errors import ConservationError, StallError
from openrlhf_tir.pipeline.ledger.audit import audit
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.types import GroupKey

from .fakes import FakeLearner, FakePrompts, FakeRollout, ages, ends_of, fate_of, pipeline, what_stops

PROMPTS = 24


def a_life(run_dir: Path, seed: int, resume: bool, killed_after: float | None, flags: dict) -> tuple[FakeLearner, bool]:
    """One process of a run: random latencies, drops, faults and disk times; killed at a random moment of virtual time,
    or stopped since more than B groups in a row failed for good, or to the end: then also True."""
    learner = FakeLearner(seconds=1.0, write_seconds=flags["write"])
    rollout = FakeRollout(seed, lambda r: r.choice([0.1, 1.0, 8.0]), fate_of(flags["drop"], 0.2))
    p = pipeline(
        run_dir, prompts=FakePrompts(PROMPTS), learner=learner, rollout=rollout, max_steps=1000, **flags["pipeline"]
    )

    async def live():
        async with asyncio.timeout(killed_after):
            await p.run(resume=resume)
        assert p.scheduler.ended.total() + p.scheduler.slots_taken == p.scheduler.dispatched
        assert len(p.scheduler.rolling) == p.scheduler.ended["buffered"] == p.scheduler.ended["training"] == 0

    try:
        run(live())
    except TimeoutError:
        return learner, False
    except ExceptionGroup as e:
        if e.split(StallError)[1] or p.health.failed_in_a_row <= p.cfg.rollout.batch_size:
            raise
        return learner, False
    return learner, True


@pytest.mark.slow
@settings(max_examples=16, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    mode=st.sampled_from(["sync", "one_step", "pipeline", "pipeline_drain"]),
    S=st.integers(1, 3),
    B=st.integers(1, 3),
    k=st.integers(1, 3),
    save_steps=st.integers(1, 4),
    write=st.floats(0, 6),
    drop=st.floats(0, 0.6),
    deaths=st.lists(st.floats(0.0, 60.0), max_size=3),
)
# two prompts in a row fail three times each
@example(seed=8426, mode="sync", S=1, B=1, k=1, save_steps=1, write=0.0, drop=0.0, deaths=[])
def test_whenever_it_is_killed_every_prompt_ends_once_and_staleness_is_bounded(
    tmp_path_factory, seed, mode, S, B, k, save_steps, write, drop, deaths
):
    """Killed at up to three random moments, each time resumed from what was committed, then run to the end of the data,
    with a resume after every stop."""
    run_dir = tmp_path_factory.mktemp("run")
    S = {"sync": 0, "one_step": 1}.get(mode, S)
    flags = {"mode": mode, "S": S, "B": B, "push_every": min(k, S + 1), "save_steps": save_steps}
    for i, after in enumerate(chain(deaths, repeat(None, 20))):
        learner, ended = a_life(run_dir, seed + i, i > 0, after, {"drop": drop, "write": write, "pipeline": flags})
        assert max(ages(learner), default=0) <= S
        if ended and after is None:
            break
    report = audit(run_dir / "ledger.jsonl")
    assert report.waiting == [] and report.provisional == 0
    assert report.committed_trained == report.trained
    assert ends_of(report, PROMPTS)["trained"] == len(report.trained) == len(set(report.trained))


def test_a_slot_that_is_lost_stops_the_run_after_the_step(tmp_path):
    """The accepted group of prompt 3 vanishes from the buffer."""
    p = pipeline(tmp_path, S=2, B=2, max_steps=5)
    finish_group = p.scheduler.finish_group

    def lose_prompt_3(group, *args):
        state = finish_group(group, *args)
        if group.key.prompt == 3:
            p.scheduler._remove_buffered([group.sequence_number])
        return state

    p.scheduler.finish_group = lose_prompt_3
    what_stops(p, ConservationError)


def test_a_prompt_that_is_lost_from_the_ledger_stops_the_run_and_is_named(tmp_path):
    p = pipeline(tmp_path, S=2, B=2, max_steps=5)
    take_batch = p.scheduler.take_batch

    def lose_one(decision):
        p.scheduler.ledger._open.add(GroupKey(0, 99))
        return take_batch(decision)

    p.scheduler.take_batch = lose_one
    assert "0/99/0" in what_stops(p, ConservationError)
