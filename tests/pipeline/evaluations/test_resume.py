"""Evaluations beside training, of runs that are killed or stopped: whoever resumes records each that is due once."""

from __future__ import annotations

import asyncio
import json
import os

import pytest

from openrlhf_tir.errors import Stopped
from openrlhf_tir.pipeline.checkpoints import checkpoint
from openrlhf_tir.simulation.virtual_loop import run

from ..fakes import FakePrompts, FakeRollout, ages, pipeline
from .test_beside import Clocked, Rows, evaluated

FLAGS = {"S": 3, "B": 2, "eval_steps": 3, "max_steps": 10}
SECONDS = 4.0
"""Of an evaluation; of a step 1, of a push 0.1: it is open over four steps."""


def life(directory, rows, *, seconds=SECONDS, ckpt=None, **flags):
    p, samples = evaluated(
        directory,
        seconds,
        rollout=FakeRollout(1, lambda r: r.choice([0.3, 1.0, 2.0])),
        prompts=FakePrompts(1000),
        learner=Clocked(write_seconds=0.3),
        metrics=rows,
        ckpt=ckpt or {},
        **FLAGS | flags,
    )
    return p, samples


def killed(p, when: float, hops: int, resume: bool = False) -> bool:
    """Whether the run was killed at that moment, so many turns of the event loop later; else it had ended."""

    async def go() -> bool:
        main = asyncio.create_task(p.run(resume=resume))
        await asyncio.wait({main}, timeout=when)
        for _ in range(hops):
            await asyncio.sleep(0)
        ended = main.done()
        main.cancel()
        await asyncio.gather(main, return_exceptions=True)
        p.scheduler.ledger.close()
        return not ended

    return run(go())


def stopped(p, when: float) -> bool:
    """The same, asked to stop."""

    async def go() -> bool:
        asyncio.get_running_loop().call_later(when, p.stop.request, "SIGTERM")
        try:
            await p.run()
        except Stopped:
            return True
        finally:
            p.scheduler.ledger.close()
        return False

    return run(go())


@pytest.fixture(autouse=True)
def no_disk_is_waited_for(monkeypatch):
    """Hundreds of runs."""
    monkeypatch.setattr(checkpoint, "flush", lambda path: None)
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("save", "key"), [(-1, "eval/accuracy"), pytest.param(1, "none", marks=pytest.mark.extended), (3, "eval/accuracy")]
)
def test_a_run_that_is_killed_at_any_moment_records_each_evaluation_once(tmp_path, save, key):
    """Once a second and a few turns later, in the first 20 s; the resume is killed too, 7 s into its life."""
    for i in range(20):
        directory, rows = tmp_path / str(i), Rows()
        flags = {"save_steps": save, "ckpt": {"best_metric_key": key}}
        p, _ = life(directory, rows, **flags)
        if not killed(p, i + 0.1 * (i % 3), hops=i % 4):
            break
        p, _ = life(directory, rows, **flags)
        killed(p, 7.0, hops=i % 3, resume=True)
        p, _ = life(directory, rows, **flags)
        run(p.run(resume=True))
        assert rows.evaluations() == [(3, 3.0), (6, 6.0), (9, 9.0)], i
        assert max(ages(p.learner), default=0) <= 3
    assert i > 15


@pytest.mark.slow
@pytest.mark.parametrize("key", ["none", "eval/accuracy"])
def test_a_stop_leaves_the_evaluation_of_the_version_that_it_saves_to_the_resume(tmp_path, key):
    """At any moment. That of an earlier version, whose weights are gone, has failed: nothing else is lost."""
    owed = lost = 0
    for i in range(24):
        directory, rows = tmp_path / str(i), Rows()
        flags = {"ckpt": {"best_metric_key": key}}
        p, _ = life(directory, rows, **flags)
        if not stopped(p, 0.7 * i):
            break
        saved, before = p.version, rows.evaluations()
        latest = directory / "ckpt" / f"{(directory / 'ckpt/latest').read_text()}/controller.json" if saved else None
        due = latest is not None and json.loads(latest.read_text()).get("evaluation_owed", False)
        assert all(v < saved for v, figure in before if figure is None)
        p, samples = life(directory, rows, **flags)
        run(p.run(resume=True))
        assert [v for v, _ in rows.evaluations()] == [3, 6, 9], i
        assert all(figure in (float(v), None) for v, figure in rows.evaluations())
        assert [r for r in rows.evaluations() if r[1] is None] == [r for r in before if r[1] is None]
        assert not due or samples.seen[0] == [saved] * 11
        owed, lost = owed + due, lost + any(figure is None for _, figure in before)
    assert owed > 2 and lost > 2


def test_a_stop_where_the_learner_waits_leaves_the_evaluation_to_the_resume_too(tmp_path):
    """mode = sync: the evaluation of version 3 is open when the run is asked."""
    rows = Rows()
    p, _ = life(tmp_path, rows, mode="sync", S=None, seconds=500.0)
    assert stopped(p, 100.0) and p.version == 3 and rows.evaluations() == []
    p, _ = life(tmp_path, rows, mode="sync", S=None)
    run(p.run(resume=True))
    assert rows.evaluations() == [(3, 3.0), (6, 6.0), (9, 9.0)]


def test_a_stop_does_not_wait_for_an_evaluation(tmp_path):
    """That of version 3 is open, and the learner at 6, where the next is due: the stop saves 6 at once, and tells
    what it gave up."""
    rows = Rows()
    p, _ = life(tmp_path, rows, seconds=5000.0)

    async def go() -> float:
        loop = asyncio.get_running_loop()
        loop.call_later(200.0, p.stop.request, "SIGTERM")
        with pytest.raises(Stopped, match="step_000006; --resume"):
            await p.run()
        return loop.time()

    assert run(go()) < 201.0
    assert rows.all[-1] == (3, {"eval/failed": 1.0, "eval/failed_samples": 0.0})


def test_an_evaluation_that_is_owed_is_of_no_run_without_evaluations(tmp_path):
    rows = Rows()
    p, _ = life(tmp_path, rows, mode="sync", S=None, seconds=500.0)
    assert stopped(p, 100.0)
    p = pipeline(
        tmp_path, metrics=rows, prompts=FakePrompts(1000), **FLAGS | {"mode": "sync", "S": None, "eval_steps": -1}
    )
    run(p.run(resume=True))
    assert p.version == 10 and rows.evaluations() == []
