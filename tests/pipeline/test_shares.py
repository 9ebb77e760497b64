"""Two environments in one run on a virtual clock: their shares hold in the batches whatever the filters drop, and a
resume goes on exactly."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from openrlhf_tir.data.stream import PromptLane, PromptStream
from openrlhf_tir.pipeline.ledger.audit import audit
from openrlhf_tir.pipeline.scheduler.prompt_queue import MAX_REPLACEMENTS
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.types import Task

from .fakes import FakeLearner, FakeRollout, MemoryMetrics, pipeline

CALC, GUESS = range(0, 60), range(60, 80)


class TwoEnvs:
    """60 prompts of calc, 20 of guess, with shares 3 and 1."""

    def __init__(self, episodes: int = 1000) -> None:
        stream = PromptStream(80, 0, True, episodes, [PromptLane(CALC, "calc", 3.0), PromptLane(GUESS, "guess", 1.0)])
        self.next, self.more, self.in_place_of = stream.next, stream.more, stream.in_place_of
        self.state, self.restore = stream.state, stream.restore
        self.learned, self.facts = stream.learned, stream.facts

    def task(self, prompt):
        return Task(f"p{prompt}", "0", "guess" if prompt in GUESS else "calc")


class Rollout(FakeRollout):
    """Drops `drop[env]` of the groups of an environment; guess answers later."""

    def __init__(self, **drop: float) -> None:
        super().__init__(latency=lambda r: r.uniform(0.5, 4.0))
        self.drop = drop

    async def run_group(self, key, task):
        dropped = self.rng.random() < self.drop.get(task.env, 0.0)
        self.fate = lambda r: "accuracy_high" if dropped else ""
        meta, group = await super().run_group(key, task)
        return replace(meta, env=task.env), group


def env_of(key) -> str:
    return "guess" if key.prompt in GUESS else "calc"


def batches(learner) -> list[Counter]:
    """Environments of each learner step."""
    found: dict[int, Counter] = {}
    for version, key, _ in learner.trained:
        found.setdefault(version, Counter())[env_of(key)] += 1
    return [found[v] for v in sorted(found)]


def test_every_batch_has_each_environments_share_where_nothing_is_dropped(tmp_path):
    p = pipeline(tmp_path, prompts=TwoEnvs(), rollout=Rollout(), B=8, mode="sync", max_steps=20)
    run(p.run())
    assert batches(p.learner) == [{"calc": 6, "guess": 2}] * 20


def test_in_the_pipeline_groups_that_take_long_are_in_a_later_batch_and_the_shares_hold_over_both(tmp_path):
    p = pipeline(tmp_path, prompts=TwoEnvs(), rollout=Rollout(), B=8, S=1, max_steps=20)
    run(p.run())
    found = batches(p.learner)
    assert (
        len(found) == 20 and all(1 <= b["guess"] <= 3 for b in found) and abs(sum(b["guess"] for b in found) - 40) <= 2
    )


@pytest.mark.parametrize(("mode", "S"), [("sync", None), ("pipeline", 1)])
def test_shares_hold_in_what_is_trained_though_filters_drop_most_of_one_environment(tmp_path, mode, S):
    """Three in four groups of guess are dropped: it is sampled four times as often, a quarter of what is trained."""
    p = pipeline(tmp_path, prompts=TwoEnvs(), rollout=Rollout(guess=0.75), B=8, S=S, mode=mode, max_steps=60)
    run(p.run())
    trained = sum(batches(p.learner), Counter())
    assert trained["guess"] / trained.total() == pytest.approx(0.25, abs=0.04)
    report = audit(p.scheduler.ledger.path)
    assert report.errors == [] and report.ended["filtered(accuracy_high)"] > 2 * trained["guess"]


def test_an_environment_of_which_nothing_is_kept_does_not_stop_the_others(tmp_path):
    p = pipeline(tmp_path, prompts=TwoEnvs(), rollout=Rollout(guess=1.0), B=8, S=1, max_steps=12)
    run(p.run())
    trained = sum(batches(p.learner), Counter())
    assert p.version == 12 and trained["guess"] == 0
    issued = audit(p.scheduler.ledger.path).ended["filtered(accuracy_high)"]
    assert issued <= trained["calc"] / 3 * (MAX_REPLACEMENTS + 1) + 200, (
        "so many tries for each place of the environment, and no more"
    )


def test_a_resume_trains_each_prompt_once_and_keeps_the_shares(tmp_path):
    """Crash in the step after 6, saved at every 2: what came after the checkpoint is rolled back, and the order goes on
    from its cut."""
    flags = {"B": 8, "S": 1, "save_steps": 2}
    first = pipeline(
        tmp_path, prompts=TwoEnvs(), rollout=Rollout(guess=0.5), learner=FakeLearner(crash_at=7), max_steps=30, **flags
    )
    with pytest.raises(ExceptionGroup):
        run(first.run())
    second = pipeline(tmp_path, prompts=TwoEnvs(), rollout=Rollout(guess=0.5), max_steps=30, **flags)
    run(second.run(resume=True))
    report = audit(second.scheduler.ledger.path)
    assert report.errors == [] and report.open == [] and len(set(report.trained)) == len(report.trained) == 30 * 8
    trained = Counter("guess" if prompt in GUESS else "calc" for _, prompt in report.trained)
    assert trained["guess"] / trained.total() == pytest.approx(0.25, abs=0.05)


def test_the_order_of_prompts_after_a_resume_is_that_of_the_run_without(tmp_path):
    """Nothing is dropped: what is trained, step by step, is the same with a crash and a resume in between."""
    flags = {"mode": "sync", "B": 8, "save_steps": 1, "max_steps": 12}
    whole = pipeline(tmp_path / "whole", prompts=TwoEnvs(), rollout=Rollout(), **flags)
    run(whole.run())
    first = pipeline(tmp_path / "cut", prompts=TwoEnvs(), rollout=Rollout(), learner=FakeLearner(crash_at=5), **flags)
    with pytest.raises(ExceptionGroup):
        run(first.run())
    second = pipeline(tmp_path / "cut", prompts=TwoEnvs(), rollout=Rollout(), **flags)
    run(second.run(resume=True))

    def prompts_of(*learners):
        return [(version, key.epoch, key.prompt) for learner in learners for version, key, _ in learner.trained]

    assert sorted(prompts_of(first.learner, second.learner)) == sorted(prompts_of(whole.learner))


def test_a_dropped_group_of_the_last_prompts_is_not_replaced(tmp_path):
    """One pass: 60 of calc and 20 of guess, all dropped; the run ends, having asked for no prompt twice."""
    p = pipeline(
        tmp_path,
        prompts=TwoEnvs(episodes=1),
        rollout=Rollout(calc=1.0, guess=1.0),
        B=8,
        S=1,
        endless=True,
    )
    run(p.run())
    report = audit(p.scheduler.ledger.path)
    assert report.errors == [] and report.open == [] and p.version == 0


def test_metrics_tell_the_environments_apart(tmp_path):
    metrics = MemoryMetrics()
    p = pipeline(tmp_path, prompts=TwoEnvs(), rollout=Rollout(guess=0.5), B=8, S=1, max_steps=6, metrics=metrics)
    p.observer.envs = p.observer.selection.envs = ("calc", "guess")
    run(p.run())
    rows = metrics.rows.values()
    assert sum(r.get("env/guess/drops/accuracy_high", 0) for r in rows) > 0 and not any(
        "env/calc/drops/accuracy_high" in r for r in rows
    )
    assert all(r["env/calc/accuracy"] == 0.5 and r["env/calc/groups"] > 0 for r in rows)
    assert {name for r in rows for name in r if "selection_bias" in name} >= {
        "env/calc/selection_bias/length",
        "env/guess/selection_bias/difficulty",
    }
