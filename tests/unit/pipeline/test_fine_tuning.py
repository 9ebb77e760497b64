"""Fine-tuning's loop on a learner that only counts: order of rows, checkpoints, resume, stop, held-out loss."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.data.sft.tokens import SftRow
from openrlhf_tir.errors import ConfigError, Diverged, InfraError, Stopped
from openrlhf_tir.pipeline.checkpoints.checkpoint import Checkpoints
from openrlhf_tir.pipeline.checkpoints.lineage import compare
from openrlhf_tir.pipeline.fine_tuning import EVAL_LOSS, FineTuning, Schedule
from openrlhf_tir.pipeline.stop import StopRequest


def row(i: int) -> SftRow:
    """i is told by the first token; two of three tokens are learned."""
    return SftRow(np.array([i, 1, 2], np.int32), np.array([0, 1, 1], np.float32))


class Counting:
    """A learner whose weights are the rows that it has seen. `norms`: gradient norm by update; `at`: called before each
    update."""

    def __init__(self, norms=(), at=lambda step: None) -> None:
        self.seen: list[list[int]] = []
        self.norms, self.at, self.files = dict(norms), at, {}

    async def sft_step(self, rows, lr):
        self.at(len(self.seen))
        await asyncio.sleep(0)
        self.seen.append([int(r.token_ids[0]) for r in rows])
        return {"loss": 1.0 / len(self.seen), "grad_norm": self.norms.get(len(self.seen), 1.0), "lr": lr}

    async def sft_loss(self, rows):
        return 0.5 * len(rows) * len(self.seen), float(2 * len(rows))

    async def save(self, directory: Path) -> None:
        (directory / "seen.txt").write_text(str(len(self.seen)))

    async def written(self):
        return {}

    async def load(self, directory: Path) -> int:
        self.seen = [[]] * int((directory / "seen.txt").read_text())
        return 0


def tuning(
    tmp_path, learner, *, rows=7, batch=3, epochs=2, held_out=0, stop=None, logged=None, **sections
) -> FineTuning:
    sft = {"batch_size": batch, "max_epochs": epochs, **sections.pop("sft", {})}
    cfg = Config(actor={"num_gpus_per_node": 1}, sft=sft, **{"ckpt": {"save_steps": 2}, **sections})
    logged = [] if logged is None else logged
    checkpoints = Checkpoints(tmp_path / "ckpt", 2, facts={"sft": {}})
    schedule = Schedule.of(cfg, rows)
    rows_of = [row(i) for i in range(rows)]
    observe = lambda step, metrics: logged.append((step, metrics))  # noqa: E731
    stop = stop or StopRequest(60.0)
    return FineTuning(
        cfg,
        schedule,
        rows_of,
        [row(100 + i) for i in range(held_out)],
        learner,
        checkpoints,
        lambda s: 0.1 * s,
        observe,
        stop,
    )


async def test_each_pass_takes_every_row_once_in_an_order_of_its_own(tmp_path):
    learner = Counting()
    await tuning(tmp_path, learner).run()
    taken = [i for batch in learner.seen for i in batch]
    assert [len(batch) for batch in learner.seen] == [3, 3, 3, 3, 2]
    assert Counter(taken[:7]) == Counter(taken[7:]) == Counter(range(7)) and taken[:7] != taken[7:]


def test_a_schedule_ends_at_the_steps_that_it_is_told_and_depends_on_the_seed():
    a, b = (Schedule(10, 4, 3, seed) for seed in (0, 1))
    assert (a.steps, Schedule(10, 4, 3, 0, max_steps=2).steps, Schedule(2, 8, 1, 0).steps) == (8, 2, 1)
    assert a.batch(0) != b.batch(0) and a.batch(0) == Schedule(10, 4, 3, 0).batch(0)
    assert (a.epoch(5), a.epoch(8)) == (2.0, 3.0)
    assert (a.rows_taken(7), a.rows_taken(8)) == (28, 30)


async def test_a_resumed_run_takes_the_rows_that_the_interrupted_one_had_not(tmp_path):
    whole, first, second, logged = Counting(), Counting(), Counting(), []
    await tuning(tmp_path / "whole", whole).run()

    def dies(step):
        if step == 3:
            raise InfraError("a rank died")

    first.at = dies
    with pytest.raises(InfraError):
        await tuning(tmp_path, first).run()
    again = tuning(tmp_path, second, logged=logged)
    await again.run(again.checkpoints.choose())
    assert first.seen == whole.seen[:3] and second.seen[2:] == whole.seen[2:]
    assert [(step, round(m["lr"], 3)) for step, m in logged] == [(3, 0.2), (4, 0.3), (5, 0.4)]


async def test_checkpoints_are_taken_as_often_as_asked_and_after_the_last_update(tmp_path):
    t = tuning(tmp_path, Counting(), ckpt={"save_steps": 2})
    await t.run()
    assert [p.name for p in sorted((tmp_path / "ckpt").glob("step_*"))] == ["step_000004", "step_000005"]
    state = t.checkpoints.state(t.checkpoints.choose())
    assert (state["step"], state["rows_taken"]) == (5, 14)


async def test_a_stop_saves_at_the_boundary_and_says_how_to_go_on(tmp_path):
    stop = StopRequest(60.0)
    learner = Counting(at=lambda step: stop.request("SIGTERM") if step == 2 else None)
    t = tuning(tmp_path, learner, stop=stop, ckpt={"save_steps": -1})
    with pytest.raises(Stopped, match=r"(?s)SIGTERM .* 3 .* 5.*step_000003.* --resume"):
        await t.run()
    assert len(learner.seen) == 3 and t.checkpoints.state(t.checkpoints.choose())["step"] == 3


async def test_an_update_that_outlives_the_grace_is_given_up(tmp_path):
    stop = StopRequest(0.0)
    learner = Counting()

    async def hangs(rows, lr):
        stop.request("SIGTERM")
        await asyncio.Event().wait()

    learner.sft_step = hangs
    with pytest.raises(Stopped, match=r"train\.stop_grace_s = 0"):
        await tuning(tmp_path, learner, stop=stop).run()


async def test_the_held_out_loss_is_a_mean_over_tokens_before_between_and_after(tmp_path):
    logged: list = []
    await tuning(tmp_path, Counting(), held_out=4, logged=logged, sft={"eval_dataset": "x"}, eval={"steps": 2}).run()
    measured = {step: metrics[EVAL_LOSS] for step, metrics in logged if EVAL_LOSS in metrics}
    assert measured == {0: 0.0, 2: 0.5, 4: 1.0, 5: 1.25}  # (0.5 * rows * updates) / (2 * rows)


async def test_a_token_of_the_held_out_rows_counts_the_same_in_a_small_last_batch(tmp_path):
    """3 rows of 2 nats in all, 1 row of 6, with 2 tokens each: 8 / 8. The mean of the batches' means would be (2/6 +
    6/2) / 2 = 1.67."""
    learner = Counting()

    async def sft_loss(rows):
        return (2.0 if len(rows) == 3 else 6.0), float(2 * len(rows))

    learner.sft_loss = sft_loss
    assert await tuning(tmp_path, learner, held_out=4).held_out_loss() == 1.0


async def test_metrics_say_what_an_update_learned(tmp_path):
    logged: list = []
    await tuning(tmp_path, Counting(), logged=logged).run()
    step, metrics = logged[-1]
    assert (step, metrics["trained_tokens"], metrics["epoch"]) == (5, 4.0, 2.0)
    assert {"loss", "grad_norm", "lr", "step_s", "tokens_per_s"} <= metrics.keys()


async def test_gradients_that_are_not_finite_end_the_run_when_they_come_in_a_row(tmp_path, monkeypatch):
    monkeypatch.setattr("openrlhf_tir.pipeline.fine_tuning.MAX_NONFINITE_STEPS", 2)
    await tuning(tmp_path / "apart", Counting({1: math.nan, 3: math.inf})).run()
    with pytest.raises(Diverged, match=r"(?s) 2 .* 3\b.*step_000002"):
        await tuning(tmp_path, Counting({2: math.nan, 3: math.nan})).run()


async def test_a_disk_that_refuses_a_checkpoint_does_not_end_the_run(tmp_path, caplog):
    learner, t = Counting(), None

    async def refuses(directory):
        raise OSError(28, "No space left on device")

    save, learner.save = learner.save, refuses

    def mended(step):
        learner.save = save if step == 4 else learner.save

    learner.at = mended
    t = tuning(tmp_path, learner)
    await t.run()
    assert "step_000002" in caplog.text and t.checkpoints.state(t.checkpoints.choose())["step"] == 5


async def test_a_run_of_rl_does_not_go_on_from_a_fine_tunings_checkpoint(tmp_path):
    t = tuning(tmp_path, Counting())
    await t.run()
    with pytest.raises(ConfigError, match=r"openrlhf-tir .*--run-dir") as refused:
        compare(t.checkpoints.state(t.checkpoints.choose()), Config())
    assert refused.value.code == "resume"
