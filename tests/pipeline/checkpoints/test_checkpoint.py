"""Checkpoints of the loop on a virtual clock: written in the background, committed after the acknowledgement, the last
ones and the best kept."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from openrlhf_tir.errors import ConfigError
from openrlhf_tir.pipeline.ledger.audit import audit
from openrlhf_tir.simulation.virtual_loop import run

from ..fakes import FakeLearner, FakePrompts, FakeRollout, pipeline


async def seconds(p) -> float:
    start = asyncio.get_running_loop().time()
    await p.run()
    return asyncio.get_running_loop().time() - start


def kept(tmp_path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "ckpt").glob("step_*"))


def test_training_does_not_wait_for_the_disk(tmp_path):
    """Checkpoints at 2, 4 and the end (5), each 2 s on its way to disk, steps of 1.1 s: the one of step 2 costs no
    time, the last is waited for, and before it 0.9 s for the one of step 4."""
    flags = {"S": 2, "max_steps": 5, "save_steps": 2}
    quick = run(seconds(pipeline(tmp_path / "a", **flags)))
    slow = run(seconds(pipeline(tmp_path / "b", learner=FakeLearner(write_seconds=2.0), **flags)))
    assert slow == pytest.approx(quick + 0.9 + 2.0)


def test_the_next_checkpoint_waits_until_the_one_before_is_written(tmp_path):
    """A step takes 1.1 s with its push, a checkpoint of every step 3 s to write: 1 -> 2 -> 3 are 3 s apart, and the
    last is waited for."""
    p = pipeline(tmp_path, S=2, max_steps=3, save_steps=1, learner=FakeLearner(write_seconds=3.0))
    assert run(seconds(p)) == pytest.approx(0.1 + 1.0 + 1.1 + 3 * 3.0)


def test_a_checkpoint_that_was_not_acknowledged_does_not_count(tmp_path):
    """Saved at 2 and 4, crash in the step after 4, which is still being written: the resume goes on from 2 and trains
    every prompt once."""
    flags = {"B": 2, "S": 1, "save_steps": 2, "max_steps": 100}
    learner = FakeLearner(crash_at=4, write_seconds=2.0)
    first = pipeline(tmp_path, prompts=FakePrompts(20), learner=learner, **flags)
    with pytest.raises(ExceptionGroup):
        run(first.run())
    assert (tmp_path / "ckpt" / "latest").read_text() == "step_000002"
    second = pipeline(tmp_path, prompts=FakePrompts(20), **flags)
    run(second.run(resume=True))
    report = audit(second.scheduler.ledger.path)
    assert report.errors == [] and sorted(report.trained) == [(0, i) for i in range(20)]
    assert report.committed_trained == report.trained


class Disk(FakeLearner):
    """A learner whose disk is full while `full(version)`; in `take` already, or when the files are awaited."""

    def __init__(self, full, at: str) -> None:
        super().__init__()
        self.full, self.at = full, at

    def refuse(self, at: str) -> None:
        if at == self.at and self.full(self.version):
            raise OSError(28, "No space left on device")

    async def save(self, directory):
        self.refuse("take")
        await super().save(directory)

    async def written(self):
        self.refuse("write")


@pytest.mark.parametrize("at", ["take", "write"])
def test_a_disk_that_refuses_costs_that_checkpoint_and_training_goes_on_until_the_next(tmp_path, caplog, at):
    """Saved at 2, refused at 4 and at 6, saved at 8, the end: that of 2 stays until then, nothing half-written does."""
    seen = {}

    class Watched(Disk):
        async def step(self, batch):
            seen[self.version] = (
                (tmp_path / "ckpt" / "latest").read_text() if (tmp_path / "ckpt" / "latest").exists() else None
            )
            return await super().step(batch)

    p = pipeline(tmp_path, save_steps=2, max_steps=8, learner=Watched(lambda version: 2 < version < 8, at))
    run(p.run())
    assert seen[7] == "step_000002" and (tmp_path / "ckpt" / "latest").read_text() == "step_000008"
    assert kept(tmp_path) == ["step_000002", "step_000008"] and not list((tmp_path / "ckpt").glob(".step_*"))
    (said, _) = [r.getMessage() for r in caplog.records]
    assert re.search(r" 4 .*No space left", said) and said.count("No space left") == 1
    (free,) = re.search(rf" MiB .* {tmp_path / 'ckpt'}, (\S+) \w+ .*: step_000002\. .*ckpt\.max_num", said).groups()
    assert float(free) > 0
    assert "step_000002; --resume" in said
    assert audit(p.scheduler.ledger.path).errors == []


def test_a_best_checkpoint_that_the_disk_refused_is_not_the_best(tmp_path):
    """0.9 at step 1 is not written; so 0.5 at step 2 is the best there is."""
    p = pipeline(
        tmp_path,
        max_steps=2,
        eval_steps=1,
        evaluate=evaluations(0.9, 0.5),
        learner=Disk(lambda version: version == 1, "write"),
    )
    run(p.run())
    assert json.loads((tmp_path / "ckpt" / "best.json").read_text()) == {"checkpoint": "step_000002", "score": 0.5}


def test_a_best_checkpoint_that_latest_could_not_name_leaves_the_best_before_it(tmp_path):
    """0.5 at step 1; 0.9 at step 2, whose directory and best.json are written when the disk refuses `latest`."""
    obstacle = tmp_path / "ckpt" / "latest.tmp"

    class Filling(FakeLearner):
        async def save(self, directory):
            await super().save(directory)
            obstacle.mkdir() if self.version == 2 else obstacle.rmdir() if obstacle.exists() else None

    p = pipeline(tmp_path, max_steps=3, eval_steps=1, evaluate=evaluations(0.5, 0.9, 0.1), learner=Filling())
    run(p.run())
    assert kept(tmp_path) == ["step_000001", "step_000003"]
    assert json.loads((tmp_path / "ckpt" / "best.json").read_text()) == {"checkpoint": "step_000001", "score": 0.5}
    run(p.saver.checkpoints.export_best(p.learner, tmp_path / "model_best"))


def evaluations(*scores: float):
    left = iter(scores)

    async def evaluate():
        return {"eval/accuracy": next(left)}

    return evaluate


def test_the_best_by_evaluation_is_kept_besides_the_last_two(tmp_path):
    """Scores of steps 1..6; step 3 is the best. Steps 1 and 3 improve and are saved; every second is anyway."""
    p = pipeline(tmp_path, max_steps=6, save_steps=2, eval_steps=1, evaluate=evaluations(0.2, 0.1, 0.9, 0.5, 0.8, 0.9))
    run(p.run())
    assert kept(tmp_path) == ["step_000003", "step_000004", "step_000006"]
    assert json.loads((tmp_path / "ckpt" / "best.json").read_text()) == {"checkpoint": "step_000003", "score": 0.9}
    assert p.learner.version == 6
    run(p.saver.checkpoints.export_best(p.learner, tmp_path / "model_best"))
    assert (tmp_path / "model_best" / "version").read_text() == "3"


def test_a_resumed_run_knows_the_best_score(tmp_path):
    run(pipeline(tmp_path, max_steps=2, save_steps=1, eval_steps=1, evaluate=evaluations(0.9, 0.5)).run())
    again = pipeline(tmp_path, max_steps=4, save_steps=1, eval_steps=1, evaluate=evaluations(0.6, 0.7))
    run(again.run(resume=True))
    assert kept(tmp_path) == ["step_000001", "step_000003", "step_000004"]


def test_a_metric_that_no_evaluation_has_is_refused(tmp_path):
    async def evaluate():
        return {"eval/pass1": 1.0}

    with pytest.raises(ExceptionGroup) as e:
        run(pipeline(tmp_path, max_steps=2, eval_steps=1, evaluate=evaluate).run())
    (error,) = e.value.exceptions
    assert isinstance(error, ConfigError) and "eval/pass1" in str(error)


def test_what_the_filters_dropped_after_the_last_step_is_committed_too(tmp_path):
    """Two groups are trained at step 1, which is saved; the other four are dropped. A resume finds nothing to do, and
    takes nothing back."""
    fates = iter(["", "", "hard", "hard", "hard", "hard"])
    flags = {"mode": "sync", "B": 2, "save_steps": 1, "max_steps": 9}
    run(pipeline(tmp_path, prompts=FakePrompts(6), rollout=FakeRollout(fate=lambda r: next(fates)), **flags).run())
    assert audit(tmp_path / "ledger.jsonl").provisional == 0
    assert kept(tmp_path) == ["step_000001", "step_000001a"]
    again = pipeline(tmp_path, prompts=FakePrompts(6), **flags)
    run(again.run(resume=True))
    report = audit(tmp_path / "ledger.jsonl")
    assert again.learner.trained == [] and report.ended["trained"] == 2 and report.ended["filtered(hard)"] == 4


def test_a_disk_that_refuses_the_commit_line_costs_nothing_but_a_word(tmp_path, caplog):
    """The checkpoint is whole and stands on lines that were synced before: it counts, and the run goes on."""
    p = pipeline(tmp_path, max_steps=4, save_steps=2)
    ledger, real = p.scheduler.ledger, p.scheduler.ledger.sync

    def sync() -> None:
        if "committed" in ledger.path.read_text():
            raise OSError(28, "No space left on device")
        real()

    ledger.sync = sync
    run(p.run())
    assert p.version == 4 and kept(tmp_path)[0] == "step_000002"
    assert re.search(r"ledger\.jsonl: .*No space left.*iB", caplog.text)
