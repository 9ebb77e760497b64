"""A curriculum in the whole loop, on a virtual clock: fewer rollouts per group that is trained, no prompt starves, and
a resume goes on exactly."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from openrlhf_tir.data.curriculum import Settings
from openrlhf_tir.data.stream import PromptStream
from openrlhf_tir.pipeline.ledger.audit import audit, events
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.types import KEEP, Task, Verdict

from .fakes import FakeLearner, FakeRollout, pipeline

N, SAMPLES, EXPLORE = 240, 8, 0.25


class Order:
    """N prompts, by passes or by difficulty."""

    def __init__(self, curriculum: bool) -> None:
        settings = Settings(SAMPLES, EXPLORE, 8.0, [(0.0, 1.0)] * N) if curriculum else None
        stream = PromptStream(N, 0, True, 100, curriculum=settings)
        self.next, self.more, self.in_place_of = stream.next, stream.more, stream.in_place_of
        self.state, self.restore = stream.state, stream.restore
        self.learned, self.facts = stream.learned, stream.facts

    def task(self, prompt):
        return Task(f"p{prompt}", "0", "echo")


class Learning(FakeRollout):
    """Pass rates rise with the learner's version, from prompt to prompt later: at first most prompts are too hard, at
    the end most are too easy. A group is dropped when all its samples are alike. What a group gets depends on its
    epoch, prompt and version alone."""

    def __init__(self, steps: int, latency=lambda r: r.uniform(0.5, 2.0)) -> None:
        super().__init__(latency=latency)
        self.steps = steps

    async def run_group(self, key, task):
        version = self.version
        meta, group = await super().run_group(key, task)
        p = 1 / (1 + np.exp(-(2 + 10 * version / self.steps - 14 * key.prompt / N)))
        correct = (np.random.default_rng([*key[:2], version]).random(SAMPLES) < p).tolist()
        reason = "" if 0 < sum(correct) < SAMPLES else "accuracy_high" if all(correct) else "accuracy_low"
        verdict = Verdict(False, reason) if reason else KEEP
        return replace(meta, correct=correct, used_code=correct, verdict=verdict), group


def rolled_per_trained(ledger, steps) -> float:
    """Groups rolled for each that was trained, in the last third of the run."""
    rows = [e.row for e in events(ledger)]
    since = next(i for i, row in enumerate(rows) if row["e"] == "trained" and row.get("step", 0) >= 2 * steps // 3)
    ends = Counter(row["e"] for row in rows[since:])
    return (ends["trained"] + ends["filtered"]) / ends["trained"]


def trained_run(directory, curriculum, steps=90, **flags):
    p = pipeline(
        directory,
        prompts=Order(curriculum),
        rollout=Learning(steps),
        B=8,
        max_steps=steps,
        endless=True,
        **flags,
    )
    run(p.run())
    return p


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "S", "times"), [pytest.param("sync", None, 1.5, marks=pytest.mark.extended), ("pipeline", 2, 1.4)]
)
def test_late_in_training_a_group_to_train_costs_fewer_rollouts_and_no_prompt_starves(tmp_path, mode, S, times):
    """2.9 rollouts without and 1.6 with it; 2.7 and 1.6 in the pipeline, where what is learned is a batch older."""
    uniform = trained_run(tmp_path / "uniform", False, mode=mode, S=S)
    by_difficulty = trained_run(tmp_path / "difficulty", True, mode=mode, S=S)
    costs = [rolled_per_trained(p.scheduler.ledger.path, 90) for p in (uniform, by_difficulty)]
    assert costs[0] > times * costs[1], costs
    report = audit(by_difficulty.scheduler.ledger.path)
    assert report.errors == [] and report.prompts == N
    assert report.longest_wait <= N / EXPLORE + 8 * 16, "a batch's groups wait for its end"


@pytest.mark.slow
def test_without_staleness_the_draws_do_not_depend_on_which_group_ended_first(tmp_path):
    def issued(name, latency):
        p = pipeline(
            tmp_path / name,
            prompts=Order(True),
            rollout=Learning(30, latency),
            B=8,
            mode="sync",
            max_steps=30,
            endless=True,
        )
        run(p.run())
        return [tuple(e.row["k"]) for e in events(p.scheduler.ledger.path) if e.row["e"] == "issued"]

    assert issued("even", lambda r: 1.0) == issued("uneven", lambda r: r.uniform(0.1, 9.0))


@pytest.mark.slow
def test_a_run_that_is_cut_and_resumed_draws_what_the_whole_one_draws(tmp_path):
    def trained(p):
        return [key[:2] for _, key, _ in p.learner.trained]

    flags = {"B": 8, "mode": "sync", "max_steps": 30, "endless": True, "save_steps": 10}
    whole = pipeline(tmp_path / "whole", prompts=Order(True), rollout=Learning(30), **flags)
    run(whole.run())
    cut = pipeline(
        tmp_path / "cut", prompts=Order(True), rollout=Learning(30), learner=FakeLearner(crash_at=14), **flags
    )
    with pytest.raises(ExceptionGroup):
        run(cut.run())
    again = pipeline(tmp_path / "cut", prompts=Order(True), rollout=Learning(30), **flags)
    run(again.run(resume=True))
    assert trained(again) == trained(whole)[10 * 8 :]
    assert audit(again.scheduler.ledger.path).errors == []
