"""The fine-tuning job on ranks that only count, without Ray: what a run directory holds at its end, and what becomes of
ranks that die."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from openrlhf_tir.cluster.jobs import sft
from openrlhf_tir.cluster.jobs.sft_inputs import SftInputs, checkpoints_of
from openrlhf_tir.config import Config
from openrlhf_tir.data.sft.read import SftSet
from openrlhf_tir.errors import LearnerDied, Stopped
from openrlhf_tir.pipeline.fine_tuning import Schedule
from openrlhf_tir.pipeline.stop import StopRequest
from openrlhf_tir.telemetry import metrics
from tests.unit.pipeline.test_fine_tuning import Counting, row


def job(run_dir) -> tuple[Config, SftInputs]:
    cfg = Config(
        run_dir=run_dir,
        actor={"num_gpus_per_node": 1},
        sft={"batch_size": 3},
        ckpt={"save_steps": 2},
        logger={"tensorboard_dir": None},
    )
    return cfg, SftInputs(
        SftSet([row(i) for i in range(7)]), SftSet([row(9)]), Schedule.of(cfg, 7), {"train.seed": 42}, []
    )


class Ranks(Counting):
    stopped = False

    async def export(self, directory):
        directory.mkdir(exist_ok=True)

    async def stop(self):
        self.stopped = True


@pytest.mark.parametrize("restarts_left", [0, 1])
async def test_ranks_that_die_after_a_stop_was_asked_for_are_not_started_again(tmp_path, monkeypatch, restarts_left):
    """A job's end reaches every process of it, the ranks' too, however many restarts were used before."""
    monkeypatch.setattr(sft, "MAX_RESTARTS", restarts_left)
    stop = StopRequest(60.0)

    def dies(step):
        if step == 3:
            stop.request("SIGTERM")
            raise LearnerDied("rank 1 is lost.")

    async def start_again(cfg):
        raise AssertionError("nobody asked for other ranks")

    monkeypatch.setattr(sft.LearnerGroup, "start_again", start_again)
    lost, (cfg, inputs) = Ranks(at=dies), job(tmp_path)
    with pytest.raises(Stopped, match="SIGTERM") as e:
        await sft._run(cfg, inputs, None, Console(quiet=True), stop, lost)
    assert lost.stopped and isinstance(e.value.__cause__, LearnerDied)


async def test_ranks_that_die_start_again_from_the_last_checkpoint_and_every_update_is_logged_once(
    tmp_path, monkeypatch
):
    def dies(step):
        if step == 3:
            raise LearnerDied("rank 1 is lost.")

    lost, new = Ranks(at=dies), Ranks()

    async def start_again(cfg):
        assert lost.stopped, "what is left of the old ranks is ended first"
        return new

    monkeypatch.setattr(sft.LearnerGroup, "start_again", start_again)
    cfg, inputs = job(tmp_path)
    summary = await sft._run(cfg, inputs, None, Console(quiet=True), StopRequest(60.0), lost)
    columns = metrics.read(tmp_path)
    assert columns["step"] == [0, 1, 2, 3, 4, 5] and columns["eval/loss"] == [0.0, None, None, None, None, 1.25]
    assert new.seen[2:] and len(new.seen) == 5 and new.stopped
    assert [round(lr / 5e-6, 3) for lr in columns["lr"][1:]] == [0.5, 1.0, 0.775, 0.325, 0.1], (
        "one update of warm-up, then a cosine to a tenth"
    )
    assert summary == json.loads((tmp_path / "sft.json").read_text()) and (
        summary["steps"],
        summary["first_eval_loss"],
        summary["eval_loss"],
    ) == (5, 0.0, 1.25)
    finished = checkpoints_of(cfg, inputs.made_of).choose()
    again = await sft._run(cfg, inputs, finished, Console(quiet=True), StopRequest(60.0), Ranks())
    assert {**again, "seconds": 0} == {**summary, "seconds": 0}, "a resume tells the losses before it too"
    assert (tmp_path / "model").is_dir() and (tmp_path / "config.toml").is_file()
