"""What a run keeps for its method: counters of rewards, over a resume; the length balance over many groups."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.pipeline.method_state import MethodState
from openrlhf_tir.pipeline.scheduler import BatchDecision
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.types import KEEP, CounterUpdate, GroupKey, StepReport, Task, Verdict

from .fakes import FakeLearner, FakePrompts, FakeRollout, group_of, pipeline


class CountingRollout(FakeRollout):
    """Each group adds 1 to "groups" and to its prompt's "seen"; keeps what it was told."""

    def __init__(self):
        super().__init__()
        self.told = []

    async def run_group(self, key, task):
        meta, group = await super().run_group(key, task)
        self.told.append((key, task.run))
        changes = [CounterUpdate("run", "groups", "add", 1.0), CounterUpdate("prompt", "seen", "add", 1.0)]
        return replace(meta, changes=changes), group


def test_counters_are_told_with_each_group_and_survive_a_resume(tmp_path):
    flags = {"B": 2, "S": 1, "save_steps": 2, "max_steps": 8}
    first = CountingRollout()
    with pytest.raises(ExceptionGroup):
        run(
            pipeline(
                tmp_path, prompts=FakePrompts(4, episodes=10), rollout=first, learner=FakeLearner(crash_at=4), **flags
            ).run()
        )
    assert first.told[0][1].counters == {} and first.told[0][1].max_updates == 8
    second = CountingRollout()
    p = pipeline(tmp_path, prompts=FakePrompts(4, episodes=10), rollout=second, **flags)
    run(p.run(resume=True))
    updates = [facts.update for _, facts in second.told]
    assert updates == sorted(updates) and updates[0] == 4 and updates[-1] > 5
    assert second.told[0][1].counters["groups"] >= 8, "what the groups of the first four steps counted is still there"
    key, facts = second.told[-1]
    assert facts.prompt["seen"] == key.epoch, "each earlier epoch has seen this prompt once"


def state_of(**filters) -> MethodState:
    return MethodState(
        Config.model_validate({"actor": {"num_gpus_per_node": 1}, "rollout": {"batch_size": 2}, "filter": filters})
    )


def test_lowest_and_highest_do_not_depend_on_the_order():
    state = state_of()
    meta, _ = group_of(GroupKey(0, 7), 0)
    for value in (3.0, 1.0, 2.0):
        changes = [CounterUpdate("prompt", "low", "lowest", value), CounterUpdate("run", "high", "highest", value)]
        state.group_ended(0, replace(meta, changes=changes))
    state.batch_trained()
    task = state.with_run_facts(Task("p", "1"), 7, 3)
    assert (task.run.update, dict(task.run.prompt), dict(task.run.counters)) == (3, {"low": 1.0}, {"high": 3.0})
    restored = state_of()
    restored.restore(json.loads(json.dumps(state.state())))
    assert restored.with_run_facts(Task("p", "1"), 7, 3) == task


@pytest.mark.parametrize(
    ("fates", "counted"), [(["", "", ""], 3), (["?timeout", "", ""], 3), (["accuracy_high", "", ""], 3)]
)
def test_a_prompt_counts_once_however_its_group_ends_and_however_often_it_is_issued(tmp_path, fates, counted):
    """Three prompts, a batch of one: all trained; one failed first and came again; one filtered."""
    left = iter(fates)
    rollout = CountingRollout()
    rollout.fate = lambda r: next(left, "")
    p = pipeline(tmp_path, mode="sync", B=1, max_steps=9, prompts=FakePrompts(3), rollout=rollout)
    run(p.run())
    assert p.scheduler.method.counters.run == {"groups": counted}


def test_a_group_that_is_accepted_and_issued_again_as_surplus_counts_once(tmp_path):
    p = pipeline(tmp_path, B=1, S=1, prompts=FakePrompts(2))
    scheduler = p.scheduler
    scheduler.method._balanced = dict.fromkeys(scheduler.method._balanced, True)

    def accepted():
        assert scheduler.can_dispatch()
        group, _ = scheduler.dispatch(0.0)
        meta, payload = group_of(group.key, 0)
        meta = replace(meta, changes=[CounterUpdate("run", "groups", "add", 1.0)])
        scheduler.finish_group(group, scheduler.method.judge_across_groups(meta), payload)
        return group

    first = accepted()
    scheduler.take_batch(BatchDecision(train=(), drop=(first.sequence_number,)))
    assert scheduler.method.counters.run == {} and not scheduler.method._lengths
    accepted()
    scheduler.take_batch(scheduler.decide_batch())
    scheduler.step_started(0.0)
    scheduler.step_ended(StepReport(1, {}, 1.0, 1))
    assert scheduler.method.counters.run == {"groups": 1.0} and len(scheduler.method._lengths) == 1


def test_a_group_that_failed_or_whose_step_changed_nothing_changes_no_counter(tmp_path):
    class NoStep(FakeLearner):
        async def step(self, batch):
            return StepReport(self.version, {"grad_norm": float("nan")}, 1.0, 1)

    p = pipeline(tmp_path, B=1, retries=0, prompts=FakePrompts(1), rollout=CountingRollout(), learner=NoStep())
    run(p.run())
    assert p.scheduler.ended["failed"] == 1 and p.scheduler.method.counters.run == {}
    rollout = CountingRollout()
    rollout.fate = lambda r: "?timeout"
    p = pipeline(tmp_path / "failing", B=1, retries=0, prompts=FakePrompts(1), rollout=rollout)
    run(p.run())
    assert p.scheduler.ended["failed"] == 1 and p.scheduler.method.counters.run == {}


def lengths(prompt: int, *samples: tuple[int, bool]):
    meta, _ = group_of(GroupKey(0, prompt), 0)
    return replace(meta, model_tokens=[n for n, _ in samples], correct=[c for _, c in samples])


def test_length_balance_drops_a_group_of_hopeless_lengths_among_the_latest():
    """Its only right answer would have to be in a bin of 1,000 tokens of which 5 % is right: here it is 1 of 41, with
    the group before."""
    balanced = state_of(names=["accuracy", "length_balance"])
    wrong = lengths(0, *[(2500, False)] * 20, (100, True))
    assert balanced.judge_across_groups(wrong).verdict.keep, "it has a good bin of its own"
    rambling = lengths(1, *[(2500, False)] * 20, (2600, True))
    assert balanced.judge_across_groups(rambling) == replace(rambling, verdict=Verdict(False, "length_balance"))
    assert rambling.verdict.keep, "the metadata that was given does not change"
    short = lengths(2, (100, True), (200, False))
    assert balanced.judge_across_groups(short).verdict.keep
    assert state_of(names=["accuracy"]).judge_across_groups(rambling).verdict.keep


def test_a_group_that_failed_is_neither_dropped_by_the_length_balance_nor_part_of_it():
    """It has the verdict KEEP and hopeless lengths, among which the next group would be hopeless too."""
    balanced = state_of(names=["accuracy", "length_balance"])
    failed = replace(lengths(0, *[(2500, False)] * 40), failed="filter_error")
    assert balanced.judge_across_groups(failed).verdict == KEEP and not balanced.depends_on_earlier_groups(failed)
    few_right = lengths(1, *[(2500, False)] * 9, (2500, True))
    assert balanced.judge_across_groups(few_right).verdict.keep, (
        "1 of 10 is right; of 50, with the failed group's, it would be 2 %"
    )
