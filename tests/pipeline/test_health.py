"""Runs that go nowhere end by name: nothing to train, gradients that are not finite. And what looks like it but is not:
equal weights, bad luck."""

from __future__ import annotations

import asyncio
import itertools
import math
import re
from dataclasses import replace

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.errors import Diverged, EvaluationFailed, MethodBroken, StallError, Unproductive
from openrlhf_tir.pipeline import health
from openrlhf_tir.pipeline.ledger.ledger import audit
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.types import GroupKey, GroupState, StepReport

from .fakes import FakeLearner, FakePrompts, FakeRollout, MemoryMetrics, group_of, pipeline, what_stops
from .random_runs.world import World, WorldLearner, live, pipeline_in


class Norms(FakeLearner):
    """Steps whose gradient norms are these; one that is not finite changes nothing."""

    def __init__(self, *norms: float, lr: float = 1e-6) -> None:
        super().__init__()
        self.norms, self.lr = iter(norms), lr

    async def step(self, batch):
        norm = next(self.norms, 1.0)
        if not math.isfinite(norm):
            return StepReport(self.version, {"grad_norm": norm, "lr": self.lr, "loss": norm}, 1.0, batch.num_tokens)
        report = await super().step(batch)
        return StepReport(report.version, {"grad_norm": norm, "lr": self.lr}, 1.0, report.trained_tokens)


def test_a_run_in_which_everything_is_dropped_says_why_with_counts_and_an_example_and_stops(tmp_path):
    """B = 2: 8 batches are fewer than 256 groups, which is then the limit. Two of three are too easy, one too hard."""
    fates = itertools.cycle(["accuracy_high", "accuracy_high", "accuracy_low"])
    said = what_stops(pipeline(tmp_path, B=2, rollout=FakeRollout(fate=lambda r: next(fates))), Unproductive)
    assert re.search(r" 256 .*: dropped\(accuracy_high\) 171, dropped\(accuracy_low\) 85\.", said)
    assert re.search(r"(?s) 0/255/0, dropped\(accuracy_high\): .*\[0\.0, 1\.0\].* 1/2\b.*'p'.*'ab'", said)


def test_large_batches_count_in_batches_and_an_example_that_is_gone_does_not_hide_the_finding(tmp_path):
    class Gone(FakeRollout):
        async def fetch(self, payloads):
            raise ConnectionError("the store is down")

    p = pipeline(tmp_path, B=100, rollout=Gone(fate=lambda r: "accuracy_low"))
    said = what_stops(p, Unproductive)
    assert re.search(r"(?s) 800 .*ConnectionError", said)


def test_one_group_that_can_be_trained_starts_the_count_anew(tmp_path, monkeypatch):
    """One of ten is accepted: the limit of 12 is never reached; of twenty: it is."""
    monkeypatch.setattr(health, "MIN_UNUSED", 12)

    def every(n: int):
        fates = itertools.cycle([*["accuracy_low"] * (n - 1), ""])
        return pipeline(
            tmp_path / str(n), B=1, mode="sync", max_steps=3, rollout=FakeRollout(fate=lambda r: next(fates))
        )

    run(every(10).run())
    assert "dropped(accuracy_low) 12" in what_stops(every(20), Unproductive)


def test_a_step_without_a_finite_gradient_is_said_with_its_groups_and_trains_nothing(tmp_path, caplog):
    """The second batch of three. Version and weights stay, its two groups have failed, the run goes on to its end."""
    p = pipeline(tmp_path, mode="sync", B=2, prompts=FakePrompts(6), learner=Norms(1.0, float("nan"), 1.0))
    run(p.run())
    (said,) = [r.getMessage() for r in caplog.records]
    assert re.search(r" 1 .*\(grad_norm nan, loss nan, lr 1e-06\).*0/2/0, 0/3/0", said)
    report = audit(p.scheduler.ledger.path)
    assert report.ended == {"trained": 4, "failed(nonfinite_gradient)": 2} and report.errors == report.open == []
    assert [key.prompt for _, key, _ in p.learner.trained] == [0, 1, 4, 5] and p.version == 2


def test_what_the_learner_says_of_an_update_that_it_left_out_is_passed_on(tmp_path, caplog):
    """The first batch has one of several updates left out; the second is not trained at all."""

    class Saying(Norms):
        async def step(self, batch):
            report = await super().step(batch)
            report.why_skipped = [f"Update {self.version}, not finite: log_probs of 0/0/0 sample 1."]
            return report

    p = pipeline(tmp_path, mode="sync", B=2, prompts=FakePrompts(4), learner=Saying(1.0, math.nan))
    run(p.run())
    one, all_of_them = [r.getMessage() for r in caplog.records]
    assert "Update 1, not finite: log_probs of 0/0/0 sample 1." in one
    assert all_of_them.endswith("0/3/0. Update 1, not finite: log_probs of 0/0/0 sample 1.")


def test_gradients_that_stay_not_finite_end_the_run_by_name(tmp_path):
    said = what_stops(
        pipeline(tmp_path, B=2, learner=Norms(1.0, math.inf, math.nan, 1.0, math.inf, math.inf, math.inf)), Diverged
    )
    assert re.search(r"\b3\b", said) and "grad_norm inf" in said


@pytest.mark.parametrize(("lr", "norm", "must_differ"), [(1e-6, 1.0, True), (0.0, 1.0, False), (1e-6, 0.0, False)])
def test_weights_must_differ_only_after_an_update_that_moves_something(tmp_path, lr, norm, must_differ):
    p = pipeline(tmp_path, mode="sync", B=1, max_steps=1, learner=Norms(norm, lr=lr))
    seen, publish = [], p.publisher.publish

    async def watched(version, *, must_differ=False):
        seen.append(must_differ)
        return await publish(version)

    p.publisher.publish = watched
    run(p.run())
    assert seen == [False, must_differ]


def test_a_learning_rate_that_ends_at_zero_finishes_saves_and_resumes(tmp_path):
    """The last step has learning rate 0, so its weights are those before it: with the real publisher, and again after a
    resume with more steps."""

    class Decayed(WorldLearner):
        async def step(self, batch):
            report = await super().step(batch)
            self.last = self.version >= 3
            return StepReport(report.version, {"grad_norm": 1.0, "lr": 0.0 if self.last else 1.0}, 1.0, 1)

        async def publish(self, path):
            return await super().publish(path) if self.version < 3 else await self._same(path)

        async def _same(self, path):
            path.write_text('{"digest": "digest 2"}')
            return "digest 2"

    def of(max_steps: int):
        world, learner = World(1), Decayed(1)
        return world, pipeline_in(
            world,
            learner,
            tmp_path,
            prompts=20,
            sections={"rollout": {"batch_size": 2}, "train": {"max_steps": max_steps}},
        )

    world, p = of(3)
    run(live(world, p))
    assert (
        p.version == 3
        and p.saver.checkpoints.latest().name == "step_000003"
        and audit(p.scheduler.ledger.path).finished
    )
    world, p = of(5)
    run(live(world, p, resume=True))
    assert p.version == 5 and audit(p.scheduler.ledger.path).errors == []


def test_an_evaluation_that_fails_is_tried_again_and_one_that_always_does_is_reported_and_costs_no_checkpoint(tmp_path):
    """Evaluations of versions 1 to 3: fails once, works, fails twice. Each step is saved, the run reaches its end."""
    outcomes = iter(
        [EvaluationFailed("engine", 5, 40), 0.5, 0.25, RuntimeError("odd"), EvaluationFailed("engine again", 7, 40)]
    )

    async def evaluate():
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return {"eval/accuracy": outcome}

    metrics = MemoryMetrics()
    metrics.log = lambda step, row: metrics.rows.setdefault(step, {}).update(row)
    p = pipeline(tmp_path, B=1, max_steps=3, save_steps=1, eval_steps=1, evaluate=evaluate, metrics=metrics)
    run(p.run())
    assert [metrics.rows[v].get("eval/accuracy") for v in (1, 2, 3)] == [0.5, 0.25, None]
    assert metrics.rows[3]["eval/failed"] == 1.0 and metrics.rows[3]["eval/failed_samples"] == 7.0
    assert p.saver.checkpoints.latest().name == "step_000003" and p.saver.checkpoints.best() == ("step_000001", 0.5)


def evaluated(tmp_path, key, *figures):
    """A run of as many steps, each evaluated to the next of `figures`."""
    outcomes = iter(figures)

    async def evaluate():
        return next(outcomes)

    p = pipeline(
        tmp_path,
        B=1,
        max_steps=len(figures),
        save_steps=1,
        eval_steps=1,
        evaluate=evaluate,
        ckpt={"best_metric_key": key},
    )
    run(p.run())
    return p


def test_a_figure_that_one_evaluation_lacks_costs_no_run(tmp_path, caplog):
    """Of an environment with few held-out problems all samples may be lost, the first time too: there is no accuracy of
    it then. The run ended with a mistake of the configuration."""
    lost, whole = {"eval/failed_samples": 2.0}, {"eval/failed_samples": 0.0}
    key = "eval/search/accuracy"
    p = evaluated(tmp_path / "a", key, whole | {key: 0.5}, whole, lost)
    assert p.version == 3 and p.saver.checkpoints.best() == ("step_000001", 0.5)
    assert re.search(r" 2 .*eval/search/accuracy", caplog.text)
    p = evaluated(tmp_path / "b", key, lost, whole | {key: 0.25})
    assert p.version == 2 and p.saver.checkpoints.best() == ("step_000002", 0.25)


def test_a_figure_that_no_evaluation_has_is_a_mistake(tmp_path):
    with pytest.raises(ExceptionGroup) as e:
        evaluated(tmp_path, "eval/acuracy", {"eval/accuracy": 0.5, "eval/failed_samples": 0.0})
    assert re.search(r"ckpt\.best_metric_key = 'eval/acuracy'.*: eval/accuracy, ", str(e.value.exceptions[0]))


def test_an_evaluation_that_hangs_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("openrlhf_tir.pipeline.evaluation.DEADLINE_S", 60.0)

    async def forever():
        await asyncio.get_running_loop().create_future()

    p = pipeline(tmp_path, B=1, max_steps=2, eval_steps=1, evaluate=forever)
    run(p.run())
    assert p.version == 2


def test_an_evaluation_whose_samples_fail_while_the_run_ends_does_not_keep_it_alive(tmp_path):
    """A group meets a bug while the evaluation runs: everything is cancelled, and a sample answers that with an error
    of its own."""

    async def sample():
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            raise RuntimeError("the actor is gone") from None

    async def evaluate():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(sample())
        return {"eval/accuracy": 1.0}

    class Bug(FakeRollout):
        async def run_group(self, key, task):
            if self.version:
                await asyncio.sleep(10)
                raise ZeroDivisionError
            return await super().run_group(key, task)

    p = pipeline(tmp_path, S=1, B=1, max_steps=5, eval_steps=1, evaluate=evaluate, rollout=Bug())
    assert what_stops(p, ZeroDivisionError) == ""


def test_an_outage_is_told_as_one_before_the_run_counts_as_hopeless():
    """The launcher starts a StallError again, an Unproductive run never."""
    counts = health.Health(Config.model_validate({"rollout": {"batch_size": 256}}))
    for _ in range(256):
        counts.group_finished(GroupState.FAILED, None, None, "env_error", 1)
        assert not counts.unproductive
    with pytest.raises(StallError, match=r"^257 .*'env_error'"):
        counts.group_finished(GroupState.FAILED, None, None, "env_error", 1)


def test_rows_that_the_environment_refuses_are_the_users_to_correct_and_no_outage():
    counts = health.Health(Config.model_validate({"rollout": {"batch_size": 2}}))
    meta, _ = group_of(GroupKey(0, 7), 0, failed="task_refused")
    meta = replace(meta, why={"task_refused": "the row has no label"})
    for _ in range(2):
        counts.group_finished(GroupState.FAILED, meta, None, "task_refused", 2)
    with pytest.raises(MethodBroken, match="the row has no label"):
        counts.group_finished(GroupState.FAILED, meta, None, "task_refused", 2)
