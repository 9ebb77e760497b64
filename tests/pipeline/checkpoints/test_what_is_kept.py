"""What ckpt.max_num and ckpt.save_hf leave on the disk, and how many prompts
rollout.vllm_generate_batch_size lets roll at once."""

from __future__ import annotations

import asyncio
import re

import pytest

from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError, Stopped
from openrlhf_tir.pipeline.checkpoints import model_export
from openrlhf_tir.pipeline.checkpoints.checkpoint import Checkpoints
from openrlhf_tir.pipeline.checkpoints.lineage import check_unused, checkpoints_of
from openrlhf_tir.simulation.virtual_loop import run

from ..fakes import FakeLearner, FakeRollout, pipeline


def trained(directory, **flags):
    p = pipeline(directory, max_steps=8, save_steps=2, **flags)
    run(p.run())
    return p


def kept(directory) -> list[str]:
    return sorted(path.name for path in (directory / "ckpt").glob("step_*"))


def test_the_oldest_checkpoints_go_when_there_are_more_than_there_may_be(tmp_path):
    trained(tmp_path / "all", ckpt={"max_num": 9})
    assert kept(tmp_path / "all") == ["step_000002", "step_000004", "step_000006", "step_000008"]
    trained(tmp_path / "two", ckpt={"max_num": 2})
    assert kept(tmp_path / "two") == ["step_000006", "step_000008"]


def test_the_last_and_the_best_stay_however_few_there_may_be(tmp_path):
    scores = iter([0.1, 0.9, 0.2, 0.3])

    async def evaluate():
        return {"eval/accuracy": next(scores)}

    trained(tmp_path, ckpt={"max_num": 1}, evaluate=evaluate, eval_steps=2)
    assert kept(tmp_path) == ["step_000004", "step_000008"]


def test_a_model_is_exported_with_each_checkpoint_and_none_is_removed(tmp_path):
    p = trained(tmp_path, ckpt={"max_num": 1, "save_hf": True})
    assert kept(tmp_path) == ["step_000002_hf", "step_000004_hf", "step_000006_hf", "step_000008", "step_000008_hf"]
    assert (tmp_path / "ckpt" / "step_000004_hf" / "version").read_text() == "4"
    assert p.saver.checkpoints.choose().name == "step_000008"


def test_an_export_that_the_disk_refuses_ends_no_run(tmp_path, caplog):
    class Full(FakeLearner):
        async def export(self, directory):
            raise OSError(28, "No space left on device")

    p = trained(tmp_path, ckpt={"save_hf": True}, learner=Full())
    assert p.version == 8 and re.search(r" 2 .*: .*No space left", caplog.text)


class Exporter(FakeLearner):
    """Writes weights, an average beside them, and a second later the configuration.

    Args:
        at: Called between the two with the learner.
        lineage: What the weights say besides the version.
    """

    def __init__(self, at=lambda learner: None, lineage: str = "") -> None:
        super().__init__()
        self.at, self.lineage, self.exported = at, lineage, []

    async def export(self, directory):
        for made in (directory, directory.with_name(f"{directory.name}_ema")):
            made.mkdir()
            (made / "weights").write_text(f"{self.version}{self.lineage}")
        self.at(self)
        await asyncio.sleep(1)
        (directory / "config").touch()
        self.exported.append(self.version)


def named(directory) -> dict[str, list[str]]:
    """Return the files of every export that has its name."""
    return {p.name: sorted(f.name for f in p.iterdir()) for p in (directory / "ckpt").glob("step_*_hf*")}


def ended_in_an_export(directory, end: str, lineage: str = "", resume: bool = False):
    """Run until the export of version 4, in whose middle a stop is asked for, or the process ends."""

    def at(learner):
        if learner.version == 4:
            p.stop.request("SIGTERM")

    async def go():
        running = asyncio.create_task(p.run(resume=resume))
        while not p.stop.reason:
            await asyncio.sleep(1 / 16)
        await asyncio.sleep(1 / 2)  # the checkpoint is written meanwhile
        running.cancel()
        await asyncio.wait({running})

    p = pipeline(directory, max_steps=8, save_steps=2, ckpt={"save_hf": True}, learner=Exporter(at, lineage))
    if end == "a stop":
        with pytest.raises(Stopped):
            run(p.run(resume=resume))
    else:
        p.stop.request = lambda reason: setattr(p.stop, "reason", reason)  # nobody winds down
        run(go())
    return p


WHOLE = {name: [*files, "weights"] for v in (2, 4, 6, 8) for name, files in
         ((f"step_00000{v}_hf", ["config"]), (f"step_00000{v}_hf_ema", []))}  # fmt: skip


@pytest.mark.parametrize("end", ["a stop", "the end of the process"])
def test_an_export_that_was_cut_off_has_no_name_and_is_made_by_the_resume(tmp_path, end):
    ended_in_an_export(tmp_path, end)
    assert kept(tmp_path)[-1] == "step_000004" and named(tmp_path).keys() == {"step_000002_hf", "step_000002_hf_ema"}
    learner = Exporter()
    p = pipeline(tmp_path, max_steps=8, save_steps=2, ckpt={"save_hf": True}, learner=learner)
    run(p.run(resume=True))
    assert learner.exported == [4, 6, 8] and named(tmp_path) == WHOLE
    assert (tmp_path / "ckpt" / "step_000004_hf" / "weights").read_text() == "4"
    again = Exporter()
    run(pipeline(tmp_path, max_steps=8, save_steps=2, ckpt={"save_hf": True}, learner=again).run(resume=True))
    assert again.exported == [], "what is there is not made again"
    assert p.saver.checkpoints.tidy() == []


def test_a_stop_before_an_export_that_is_due_leaves_it_to_the_resume(tmp_path):
    """It comes while version 2 is pushed, so that neither checkpoint nor export has begun."""
    p = pipeline(tmp_path, max_steps=4, save_steps=2, ckpt={"save_hf": True}, learner=Exporter())
    publish = p.publisher.publish

    async def push(version, **how):
        if version == 2:
            p.stop.request("SIGTERM")
        return await publish(version, **how)

    p.publisher.publish = push
    with pytest.raises(Stopped):
        run(p.run())
    assert kept(tmp_path) == ["step_000002"]
    learner = Exporter()
    run(pipeline(tmp_path, max_steps=4, save_steps=2, ckpt={"save_hf": True}, learner=learner).run(resume=True))
    assert learner.exported == [2, 4]


def test_a_stop_after_a_resume_leaves_the_export_of_its_version(tmp_path):
    """A group was dropped, so that a second checkpoint of version 2 is taken; no step has begun."""
    flags = {"save_steps": 2, "ckpt": {"save_hf": True}}
    run(pipeline(tmp_path, max_steps=2, learner=Exporter(), **flags).run())
    latencies, fates = iter([0.5]), iter(["accuracy_high"])
    rollout = FakeRollout(latency=lambda r: next(latencies, 9.0), fate=lambda r: next(fates, ""))
    p = pipeline(tmp_path, max_steps=4, learner=Exporter(), rollout=rollout, **flags)

    async def go():
        asyncio.get_running_loop().call_later(5.0, p.stop.request, "SIGTERM")
        with pytest.raises(Stopped):
            await p.run(resume=True)

    run(go())
    assert p.saver.checkpoints.latest_name() == "step_000002a"
    assert named(tmp_path) == {"step_000002_hf": ["config", "weights"], "step_000002_hf_ema": ["weights"]}


def test_an_export_of_a_lineage_that_was_left_is_not_taken_for_this_ones(tmp_path):
    p = pipeline(tmp_path, max_steps=4, save_steps=2, ckpt={"save_hf": True}, learner=Exporter(lineage=" old"))
    run(p.run())
    p.saver.checkpoints.accept(tmp_path / "ckpt" / "step_000002")
    ended_in_an_export(tmp_path, "a stop", " new", resume=True)
    assert not (tmp_path / "ckpt" / "step_000004_hf").exists()
    learner = Exporter(lineage=" new")
    run(pipeline(tmp_path, max_steps=4, save_steps=2, ckpt={"save_hf": True}, learner=learner).run(resume=True))
    exports = {v: (tmp_path / "ckpt" / f"step_00000{v}_hf" / "weights").read_text() for v in (2, 4)}
    assert exports == {2: "2 old", 4: "4 new"}, "that of version 2 is of the checkpoint that both come from"


def test_a_model_that_exists_is_written_in_place_and_keeps_what_its_owner_put_there(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "README.md").touch()

    class Writer(FakeLearner):
        async def export(self, directory):
            directory.mkdir(exist_ok=True)
            (directory / "weights").touch()

    run(model_export.export(Writer(), tmp_path / "model", lambda directory: (directory / "template").touch()))
    run(model_export.export(Writer(), tmp_path / "new", lambda directory: (directory / "template").touch()))
    assert {p.name for p in tmp_path.iterdir()} == {"model", "new"}
    assert {p.name for p in (tmp_path / "model").iterdir()} == {"README.md", "weights", "template"}
    assert {p.name for p in (tmp_path / "new").iterdir()} == {"weights", "template"}


def test_without_checkpoints_there_are_exports_only(tmp_path):
    p = trained(tmp_path, ckpt={"max_num": 0, "save_hf": True})
    assert kept(tmp_path) == ["step_000002_hf", "step_000004_hf", "step_000006_hf", "step_000008_hf"]
    assert not p.saver.checkpoints.exist and p.version == 8


def test_a_new_run_does_not_delete_the_exports_of_an_earlier_one(tmp_path):
    p = trained(tmp_path, ckpt={"max_num": 0, "save_hf": True})
    with pytest.raises(ConfigError, match=r"\(step_000002_hf, .*step_000008_hf\)"):
        check_unused(p.cfg)


@pytest.mark.parametrize("train", [{"resume": True}, {"max_restarts": 1}])
def test_without_checkpoints_nothing_can_be_resumed(tmp_path, train):
    with pytest.raises(ValueError, match=rf"train\.{next(iter(train))} .*ckpt\.max_num"):
        pipeline(tmp_path, train=train, ckpt={"max_num": 0})


class Counting(FakeRollout):
    """Remembers how many groups rolled at once."""

    most = 0

    async def run_group(self, key, task):
        self.most = max(self.most, self.live + 1)
        return await super().run_group(key, task)


@pytest.mark.parametrize(("at_once", "most"), [(None, 6), (3, 3), (1, 1)])
def test_no_more_prompts_roll_at_once_than_asked_for(tmp_path, at_once, most):
    rollout = Counting()
    p = pipeline(tmp_path, rollout=rollout, S=2, B=2, max_steps=6, sampling={"vllm_generate_batch_size": at_once})
    run(p.run())
    assert (rollout.most, p.version) == (most, 6)


def test_more_prompts_at_once_than_a_batch_of_a_synchronous_run_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"rollout\.vllm_generate_batch_size = 5 .*rollout\.batch_size = 2"):
        pipeline(tmp_path, mode="sync", sampling={"vllm_generate_batch_size": 5})


@pytest.mark.parametrize("path", ["", "..", "../mine"])
def test_a_new_run_removes_its_own_checkpoints_and_nothing_else_of_the_directory(path, tmp_path):
    """ckpt.path may name any directory: the run's, the one above it, one that others use."""
    runs = tmp_path / "runs"
    cfg = load(None, {"run_dir": str(runs / "a"), "ckpt.path": path})
    directory = runs / "a" / path
    others = [
        runs / "b" / "metrics.jsonl",
        runs / "a" / "metrics.jsonl",
        directory / "thesis.tmp",
        directory / "step_1",
    ]
    names = ("step_000002", "step_000002_hf", "step_000002_hf_ema", ".step_000004.tmp", ".step_000004_hf.tmp")
    own = [directory / name for name in (*names, "step_000004a")]
    for file in [*others, *(d / "file" for d in own), directory / "latest", directory / "best.json"]:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    checkpoints_of(cfg).clear()
    assert all(file.is_file() for file in others)
    assert not any(p.exists() for p in [*own, directory / "latest", directory / "best.json"])


def test_a_directory_that_held_checkpoints_alone_is_removed_with_them(tmp_path):
    trained(tmp_path, ckpt={"save_hf": True})
    checkpoints_of(load(None, {"run_dir": str(tmp_path)})).clear()
    assert not (tmp_path / "ckpt").exists() and tmp_path.exists()


async def test_the_best_that_is_named_exists_after_a_third_checkpoint_of_one_update(tmp_path):
    """A stop, a resume with its pending evaluation, and another stop before the next update."""

    class Learner:
        async def save(self, directory):
            (directory / "weights").write_text("the same")

        async def written(self):
            return {}

    learner = Learner()
    checkpoints = Checkpoints(tmp_path, 3)
    for score, name in [(None, "step_000008"), (0.5, "step_000008a"), (None, "step_000008")]:
        await checkpoints.take(8, learner)
        assert (await checkpoints.commit(8, {}, [], learner, score)).name == name
    best = checkpoints.best()[0]
    assert best is None or (tmp_path / best).is_dir()
    assert [path.name for path in tmp_path.glob("step_*")] == ["step_000008"]
