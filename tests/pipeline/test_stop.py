"""A run that is asked to stop: at the next boundary, with a checkpoint, within its grace; and what it says."""

from __future__ import annotations

import asyncio
import threading

import pytest

from openrlhf_tir.errors import Stopped
from openrlhf_tir.pipeline.checkpoints import checkpoint
from openrlhf_tir.pipeline.evaluation import PAUSE_S
from openrlhf_tir.pipeline.ledger.ledger import audit
from openrlhf_tir.simulation.virtual_loop import run

from .fakes import FakeLearner, FakePrompts, FakeRollout, MemoryMetrics, pipeline
from .random_runs.world import World, WorldLearner, live, pipeline_in


def stopped(p, when: float, resume: bool = False) -> tuple[str, float]:
    """What a run that is asked after `when` virtual seconds says, and how long it took from there."""

    async def go() -> tuple[str, float]:
        loop = asyncio.get_running_loop()
        loop.call_later(when, p.stop.request, "SIGTERM")
        with pytest.raises(Stopped) as e:
            await p.run(resume=resume)
        return str(e.value), loop.time() - when

    return run(go())


def test_a_step_that_runs_is_finished_and_its_version_saved(tmp_path):
    """Push 0.1 s, groups 1 s, step from 1.1 to 3.1 s; asked at 2 s."""
    p = pipeline(tmp_path, B=2, prompts=FakePrompts(8), learner=FakeLearner(seconds=2.0))
    said, seconds = stopped(p, 2.0)
    assert seconds == pytest.approx(1.1) and p.version == 1
    assert "SIGTERM" in said and f"{tmp_path / 'ckpt' / 'step_000001'}; --resume" in said
    assert not p.group_tasks or all(task.cancelled() for task in p.group_tasks.values())


def test_the_step_that_a_stop_waits_for_has_its_row_though_its_push_is_given_up(tmp_path):
    """Asked in the first step: its push begins at its end, and is cancelled; the resume goes on with the second row."""
    metrics = MemoryMetrics()
    stopped(pipeline(tmp_path, B=2, prompts=FakePrompts(8), learner=FakeLearner(seconds=2.0), metrics=metrics), 2.0)
    assert list(metrics.rows) == [1]
    run(pipeline(tmp_path, B=2, prompts=FakePrompts(8), metrics=metrics).run(resume=True))
    assert sorted(metrics.rows) == [1, 2, 3, 4]


@pytest.mark.parametrize("when", [0.05, 0.5, 1.15, 2.0, 3.0, 4.15, 7.3])
def test_after_a_stop_a_resume_trains_every_prompt_exactly_once(tmp_path, when):
    flags = {"B": 2, "S": 1, "save_steps": 2, "max_steps": 100}
    stopped(
        pipeline(
            tmp_path, prompts=FakePrompts(16), rollout=FakeRollout(1, lambda r: r.choice([0.3, 1.0, 4.0])), **flags
        ),
        when,
    )
    again = pipeline(tmp_path, prompts=FakePrompts(16), **flags)
    run(again.run(resume=True))
    report = audit(again.scheduler.ledger.path)
    assert report.errors == report.open == [] and report.committed_trained == report.trained
    assert sorted(report.trained) == [(0, i) for i in range(16)]


class Recorder(FakeLearner):
    """Tells when each of its steps began, and copies its state for `copy_s` seconds."""

    def __init__(self, seconds: float = 1.0, copy_s: float = 0.0) -> None:
        super().__init__(seconds=seconds)
        self.copy_s, self.began = copy_s, []

    async def step(self, batch):
        self.began.append(asyncio.get_running_loop().time())
        return await super().step(batch)

    async def save(self, directory):
        await asyncio.sleep(self.copy_s)
        await super().save(directory)


def test_no_step_begins_after_a_stop_that_comes_while_a_checkpoint_is_copied(tmp_path):
    """Push 0.1 s, groups 1 s, step to 2.1 s, push to 2.2 s, copy to 4.2 s; asked at 3 s with the next batch ready."""
    learner = Recorder(copy_s=2.0)
    p = pipeline(tmp_path, B=2, S=1, save_steps=1, prompts=FakePrompts(40), learner=learner)
    said, seconds = stopped(p, 3.0)
    assert len(learner.began) == 1 and seconds == pytest.approx(1.2) and p.version == 1
    assert "step_000001; --resume" in said


def test_no_step_begins_after_a_stop_that_comes_in_a_step_without_a_push_behind_it(tmp_path):
    """With a push every three steps the loop reaches the next step without waiting for anything."""
    learner = Recorder()
    p = pipeline(tmp_path, B=1, S=2, push_every=3, prompts=FakePrompts(40), learner=learner)
    stopped(p, 1.5)
    assert learner.began == [pytest.approx(1.1)] and p.saver.last_snapshot[0] == 1


def test_a_step_that_outlasts_the_grace_is_given_up_and_the_checkpoint_before_counts(tmp_path):
    seconds_of_step = iter([1.0, 1.0, 1e6])

    class Slow(FakeLearner):
        async def step(self, batch):
            self.seconds = next(seconds_of_step)
            return await super().step(batch)

    p = pipeline(tmp_path, B=2, save_steps=2, prompts=FakePrompts(20), learner=Slow(), stall=1e7)
    said, seconds = stopped(p, 100.0)
    assert seconds == pytest.approx(p.stop.grace_s)
    assert "train.stop_grace_s = 20 s" in said and "step_000002; --resume" in said


def test_a_disk_that_hangs_is_not_waited_for_beyond_the_grace(tmp_path):
    p = pipeline(tmp_path, B=2, prompts=FakePrompts(8), learner=FakeLearner(write_seconds=1e6))
    said, seconds = stopped(p, 1.5)
    assert seconds == pytest.approx(p.stop.grace_s) and "train.stop_grace_s = 20 s" in said and "step_" not in said
    assert p.saver.checkpoints.latest_name() is None and not list((tmp_path / "ckpt").glob("step_*"))


@pytest.mark.parametrize("named", [False, True])
def test_a_hung_write_is_left_behind_and_its_checkpoint_counts_only_if_it_has_its_name(tmp_path, monkeypatch, named):
    """On real threads. The disk hangs before the directory is renamed, or after it, until the run has ended."""
    goes_on, hangs = threading.Event(), threading.Event()
    guard = threading.Timer(120.0, goes_on.set)
    guard.start()
    real = checkpoint.flush

    def flush(path):
        if path.name == ("ckpt" if named else ".step_000001.tmp"):
            hangs.set()
            goes_on.wait()
        real(path)

    monkeypatch.setattr(checkpoint, "flush", flush)
    monkeypatch.setattr(checkpoint, "SETTLE_S", 60.0 if named else 0.01)
    p = pipeline(tmp_path, B=2, save_steps=1, prompts=FakePrompts(8), learner=FakeLearner(seconds=0.01))
    p.rollout.latency = lambda r: 0.01
    p.stop.grace_s = 0.5

    async def go():
        running = asyncio.create_task(p.run())
        await asyncio.to_thread(hangs.wait)
        p.stop.request("SIGTERM")
        if named:  # the disk answers late, while the giving up is waited for
            asyncio.get_running_loop().call_later(1.0, goes_on.set)
        with pytest.raises(Stopped) as e:
            await running
        return str(e.value)

    said = asyncio.run(go())
    assert goes_on.is_set() == named, "nobody waited for a thread that hangs"
    latest = p.saver.checkpoints.latest_name()
    assert latest == ("step_000001" if named else None)
    assert ("step_000001; --resume" in said) == named
    goes_on.set()
    guard.cancel()
    for thread in threading.enumerate():
        if thread.name == "_commit":
            thread.join()
    assert p.saver.checkpoints.latest_name() == latest
    assert [d.name for d in (tmp_path / "ckpt").glob("step_*")] == ["step_000001"] * named


def test_a_stop_before_the_state_is_restored_saves_nothing_over_the_old_checkpoint(tmp_path):
    run(pipeline(tmp_path, B=2, prompts=FakePrompts(4), max_steps=1).run())

    class SlowDisk(FakeLearner):
        async def load(self, directory):
            await asyncio.sleep(10)
            return await super().load(directory)

    said, _ = stopped(pipeline(tmp_path, B=2, prompts=FakePrompts(4), learner=SlowDisk()), 1.0, resume=True)
    assert "step_" not in said
    assert [d.name for d in (tmp_path / "ckpt").glob("step_*")] == ["step_000001"]


def test_an_evaluation_and_a_drain_are_given_up_for_a_stop(tmp_path):
    async def forever():
        await asyncio.sleep(1e6)

    p = pipeline(tmp_path / "a", B=2, prompts=FakePrompts(8), evaluate=forever, eval_steps=1, eval={"wait": True})
    assert stopped(p, 10.0)[1] < PAUSE_S and p.saver.last_snapshot[0] == 1
    latencies = iter([0.5, 0.5, 0.5, 0.5] + [900.0] * 20)
    p = pipeline(
        tmp_path / "b",
        mode="pipeline_drain",
        S=2,
        B=2,
        prompts=FakePrompts(40),
        rollout=FakeRollout(latency=lambda r: next(latencies)),
    )
    assert (
        stopped(p, 50.0)[1] == pytest.approx(0.0) and p.saver.last_snapshot[0] == 1 and p.scheduler.pushed_version == 0
    )


def test_the_batch_in_hand_is_saved_while_it_waits_for_an_engine_that_joins(tmp_path):
    """The batch was taken, its step waits for the lock that a joining engine holds: a checkpoint taken there has the
    batch, and so has the resume."""
    flags = {"prompts": 12, "sections": {"rollout": {"batch_size": 2}, "pipeline": {"max_staleness": 2, "depth": 6}}}
    world, learner = World(1, actors=2), WorldLearner(2)
    p = pipeline_in(world, learner, tmp_path, **flags)
    seen = []

    async def go() -> None:
        running = asyncio.create_task(live(world, p))
        while p.version < 1 or p.observer.current_phase != "push":
            await asyncio.sleep(1 / 16)
        async with p.publisher.exclusive_learner():  # as long as an engine joins
            while not p.scheduler.current_batch:
                await asyncio.sleep(1 / 16)
            seen.extend(item.meta.key.prompt for _, item in p.scheduler.current_batch)
            p.stop.request("now")
            with pytest.raises(Stopped):
                await running

    run(go())
    (_, rows) = p.saver.checkpoints.read(p.saver.checkpoints.latest())
    assert len(seen) == 2 and seen == [flight.key.prompt for flight, _, _ in rows[:2]]
    again, learner = World(2, actors=2), WorldLearner(2)
    run(live(again, pipeline_in(again, learner, tmp_path, **flags), resume=True))
    report = audit(tmp_path / "ledger.jsonl")
    assert report.errors == report.open == [] and sorted(report.trained) == sorted(learner.lineage) == [
        (0, i) for i in range(12)
    ]
