"""RolloutScheduler: pure decisions, one call per transition, books that agree, and a snapshot that loses nothing."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import typing
from dataclasses import replace
from pathlib import Path

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.data.stream import PromptLane, PromptStream
from openrlhf_tir.errors import ConservationError, PipelineError
from openrlhf_tir.pipeline.checkpoints import scheduler_state
from openrlhf_tir.pipeline.ledger.ledger import Ledger, audit
from openrlhf_tir.pipeline.scheduler import (
    BatchDecision,
    InFlightGroup,
    RolloutScheduler,
    SchedulerSnapshot,
)
from openrlhf_tir.pipeline.scheduler.core import DispatchObstacle
from openrlhf_tir.types import KEEP, TERMINAL, BatchItem, GroupMeta, GroupState, StepReport, Task, Verdict
from tests.pipeline.fakes import FakePrompts, group_of

TRAINED = StepReport(version=1, metrics={}, seconds=1.0, trained_tokens=8)


def settings_in(directory: Path, **sections) -> Config:
    """Batches of two groups; two batches ahead, so six groups may be under way."""
    defaults = {
        "actor": {"num_gpus_per_node": 1},
        "rollout": {"batch_size": 2, "n_samples_per_prompt": 2},
        "pipeline": {"max_staleness": 2, "depth": 6},
    }
    return Config.model_validate({"run_dir": directory, **defaults, **sections})


def scheduler_in(directory: Path, prompts: int = 10, **sections) -> RolloutScheduler:
    return RolloutScheduler(
        settings_in(directory, **sections), FakePrompts(prompts), Ledger(directory / "ledger.jsonl")
    )


def accept(scheduler: RolloutScheduler, group: InFlightGroup) -> None:
    assert scheduler.finish_group(group, *group_of(group.key, 0)) == GroupState.BUFFERED


def roll(scheduler: RolloutScheduler, n: int) -> list[InFlightGroup]:
    """n prompts are dispatched, rolled and accepted."""
    groups = []
    for _ in range(n):
        assert scheduler.can_dispatch()
        group, _ = scheduler.dispatch(now=0.0)
        accept(scheduler, group)
        groups.append(group)
    return groups


def take(scheduler: RolloutScheduler) -> list[BatchItem]:
    decision = scheduler.decide_batch()
    assert decision is not None
    return scheduler.take_batch(decision)


def train(scheduler: RolloutScheduler, report: StepReport = TRAINED, now: float = 0.0) -> None:
    take(scheduler)
    scheduler.step_started(now)
    scheduler.step_ended(report)


def test_a_state_is_terminal_when_its_group_gives_back_the_slot():
    assert set(GroupState) - TERMINAL == {GroupState.ROLLING, GroupState.BUFFERED, GroupState.TRAINING}


def test_every_group_is_in_one_place_and_the_books_agree_all_the_way(tmp_path):
    scheduler = scheduler_in(tmp_path)
    roll(scheduler, 3)
    assert scheduler.can_dispatch()
    scheduler.dispatch(now=0.0)
    scheduler.check()
    assert [item.meta.key.prompt for item in take(scheduler)] == [0, 1]
    scheduler.check()
    assert (len(scheduler.rolling), len(scheduler.buffered), len(scheduler.current_batch)) == (1, 1, 2)
    assert scheduler.slots_taken == scheduler.dispatched == 4
    scheduler.step_started(now=0.0)
    scheduler.step_ended(TRAINED)
    scheduler.check()
    assert (scheduler.version, len(scheduler.current_batch), scheduler.ended[GroupState.TRAINED]) == (1, 0, 2)


def test_decisions_change_nothing(tmp_path):
    scheduler = scheduler_in(tmp_path)
    roll(scheduler, 3)
    scheduler.dispatch(now=0.0)
    before = scheduler.snapshot()
    for _ in range(2):
        assert scheduler.can_dispatch()
        assert scheduler.can_fill_batch()
        assert scheduler.gate_is_open()
        assert scheduler.decide_batch() == ((1, 2), ())
        assert not scheduler.push_is_due(evaluation_running=False, evaluation_pending=False)
    assert scheduler.snapshot() == before


def test_the_documented_example_is_true(tmp_path):
    """Batches of 2, one batch ahead: the gate waits for two groups of version 0 that are due now."""
    scheduler = scheduler_in(tmp_path, pipeline={"max_staleness": 1, "depth": 4})
    groups = [scheduler.dispatch(now=0.0)[0] for _ in range(4)]
    assert scheduler.dispatch_obstacle() is DispatchObstacle.STALENESS
    for group in groups[2:]:
        accept(scheduler, group)
    train(scheduler)
    scheduler.push_finished()
    younger = [scheduler.dispatch(now=0.0)[0] for _ in range(2)]
    for group in younger:
        accept(scheduler, group)
    assert scheduler.can_fill_batch()
    assert scheduler.decide_batch() is None
    for group in groups[:2]:
        accept(scheduler, group)
    assert scheduler.decide_batch() == ((1, 2), ())


def test_groups_in_training_take_a_slot_until_their_batch_has_ended(tmp_path):
    """No batch ahead, so two groups may be under way."""
    scheduler = scheduler_in(tmp_path, pipeline={"mode": "sync"})
    roll(scheduler, 2)
    assert scheduler.dispatch_obstacle() is DispatchObstacle.STALENESS
    take(scheduler)
    assert scheduler.dispatch_obstacle() is DispatchObstacle.STALENESS
    scheduler.step_started(now=0.0)
    scheduler.step_ended(TRAINED)
    scheduler.push_finished()
    assert scheduler.can_dispatch()


def test_a_filtered_group_frees_its_slot_at_once(tmp_path):
    scheduler = scheduler_in(tmp_path, pipeline={"mode": "sync"})
    roll(scheduler, 1)
    group, _ = scheduler.dispatch(now=0.0)
    assert not scheduler.can_dispatch()
    meta, payload = group_of(group.key, 0)
    meta = replace(meta, verdict=meta.verdict._replace(keep=False, reason="accuracy_high"))
    assert scheduler.finish_group(group, meta, payload) == GroupState.FILTERED
    assert scheduler.can_dispatch()


@pytest.mark.parametrize(
    ("sections", "rolling", "obstacle"),
    [
        ({"pipeline": {"max_staleness": 2, "depth": 6}}, 6, DispatchObstacle.STALENESS),
        ({"pipeline": {"max_staleness": 2, "depth": 4}}, 4, DispatchObstacle.DEPTH),
        ({"train": {"max_steps": 1}}, 2, DispatchObstacle.END_OF_RUN),
        (
            {"rollout": {"batch_size": 2, "n_samples_per_prompt": 2, "vllm_generate_batch_size": 1}},
            1,
            DispatchObstacle.MAX_ROLLING,
        ),
    ],
)
def test_the_reason_why_no_group_may_start_is_named(tmp_path, sections, rolling, obstacle):
    scheduler = scheduler_in(tmp_path, **sections)
    while scheduler.can_dispatch():
        scheduler.dispatch(now=0.0)
    assert (len(scheduler.rolling), scheduler.dispatch_obstacle()) == (rolling, obstacle)


def test_a_push_ends_a_drain_and_never_a_stop(tmp_path):
    scheduler = scheduler_in(tmp_path, prompts=1)
    scheduler.stop()
    scheduler.start_draining()
    scheduler.push_finished()
    assert scheduler.dispatch_obstacle() is DispatchObstacle.STOP


def test_a_drain_and_the_end_of_the_prompts_are_reasons_too(tmp_path):
    scheduler = scheduler_in(tmp_path, prompts=1)
    scheduler.start_draining()
    assert scheduler.dispatch_obstacle() is DispatchObstacle.DRAIN
    scheduler.push_finished()
    scheduler.dispatch(now=0.0)
    assert scheduler.dispatch_obstacle() is DispatchObstacle.NO_PROMPT


def test_the_depth_controller_knows_how_long_steps_take_and_how_far_apart_they_begin(tmp_path):
    scheduler = scheduler_in(tmp_path, pipeline={"max_staleness": 2})
    timing = scheduler.depth.timing
    known = []
    for version, started_at in enumerate((10.0, 17.0, 23.5), start=1):
        roll(scheduler, 2)
        train(scheduler, StepReport(version, {}, 1.0, 8), now=started_at)
        timing.step_finished(4.0)
        known.append((timing.work_s, timing.period_s))
    assert known == [(4.0, None), (4.0, 7.0), (4.0, 6.75)]


def test_a_group_cannot_end_twice(tmp_path):
    scheduler = scheduler_in(tmp_path)
    (group,) = roll(scheduler, 1)
    with pytest.raises(ConservationError):
        scheduler.finish_group(group, *group_of(group.key, 0))


def test_a_group_that_vanishes_from_the_current_batch_is_missed(tmp_path):
    scheduler = scheduler_in(tmp_path)
    roll(scheduler, 2)
    take(scheduler)
    scheduler._current_batch.pop()
    with pytest.raises(ConservationError):
        scheduler.snapshot()


def test_there_is_no_snapshot_in_the_middle_of_a_step(tmp_path):
    scheduler = scheduler_in(tmp_path)
    roll(scheduler, 2)
    take(scheduler)
    scheduler.step_started(now=0.0)
    with pytest.raises(PipelineError):
        scheduler.snapshot()


def stored_and_read(snapshot: SchedulerSnapshot, directory: Path) -> SchedulerSnapshot:
    """The snapshot by way of controller.json."""
    facts = json.loads(json.dumps(scheduler_state.to_facts(snapshot, settings_in(directory))))
    return scheduler_state.from_facts(facts, snapshot.version, snapshot.accepted)


def test_after_a_resume_the_current_batch_is_buffered_and_rolling_prompts_are_dispatched_first(tmp_path):
    scheduler = scheduler_in(tmp_path)
    roll(scheduler, 3)
    assert scheduler.can_dispatch()
    scheduler.dispatch(now=0.0)
    take(scheduler)
    snapshot = scheduler.snapshot()
    assert [group.key.prompt for group, _ in snapshot.accepted] == [0, 1, 2]
    resumed = scheduler_in(tmp_path)
    resumed.restore(stored_and_read(snapshot, tmp_path))
    resumed.check()
    assert (len(resumed.buffered), len(resumed.current_batch), len(resumed.rolling)) == (3, 0, 0)
    group, _ = resumed.dispatch(now=0.0)
    assert (group.key, group.sequence_number) == ((0, 3, 1), 4)
    assert audit(tmp_path / "ledger.jsonl").errors == []


def test_a_snapshot_is_the_same_after_it_was_stored_and_read(tmp_path):
    scheduler = scheduler_in(tmp_path)
    roll(scheduler, 3)
    group, _ = scheduler.dispatch(now=1.5)
    scheduler.finish_group(group, None, failure="env_error")
    scheduler.dispatch(now=2.5)
    snapshot = scheduler.snapshot()
    assert stored_and_read(snapshot, tmp_path) == snapshot


def test_replacements_of_an_older_checkpoint_come_after_the_repeated_attempts_and_before_new_prompts(tmp_path):
    """It holds them apart, and they get their place in line when they are read."""
    scheduler = scheduler_in(tmp_path)
    group, _ = scheduler.dispatch(now=0.0)
    scheduler.finish_group(group, None, failure="env_error")
    snapshot = scheduler.snapshot()
    facts = scheduler_state.to_facts(snapshot, settings_in(tmp_path))
    facts["replacements"] = [{"epoch": 0, "prompt": 7, "sequence_number": None, "retries": 0, "replacements": 1}]
    resumed = scheduler_in(tmp_path)
    resumed.restore(scheduler_state.from_facts(facts, snapshot.version, ()))
    groups = [resumed.dispatch(now=0.0)[0] for _ in range(3)]
    assert [(g.key.prompt, g.sequence_number) for g in groups] == [(0, 1), (7, 2), (1, 3)]


def test_a_batch_whose_gradient_is_not_finite_fails_and_the_version_stays(tmp_path):
    scheduler = scheduler_in(tmp_path)
    roll(scheduler, 2)
    train(scheduler, StepReport(0, {"grad_norm": float("nan")}, 1.0, 0))
    scheduler.check()
    assert (scheduler.version, scheduler.stepping, scheduler.ended[GroupState.FAILED]) == (0, False, 2)
    assert audit(tmp_path / "ledger.jsonl").ended == {"failed(nonfinite_gradient)": 2}


def is_immutable(kind) -> bool:
    """Return True if values of this type, and all that they hold, can never change."""
    if kind in (int, float, str, bytes, bool, type(None)):
        return True
    if typing.get_origin(kind) is typing.Union or type(kind).__name__ == "UnionType":
        return all(map(is_immutable, typing.get_args(kind)))
    if typing.get_origin(kind) is tuple:
        return all(is_immutable(part) for part in typing.get_args(kind) if part is not Ellipsis)
    if dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen:
        return kind is BatchItem or all(map(is_immutable, typing.get_type_hints(kind).values()))
    return issubclass(kind, tuple) and all(map(is_immutable, typing.get_type_hints(kind).values()))


def test_a_snapshot_has_only_fields_of_immutable_types():
    """A dictionary or a list among its fields would be handed to the background writer by reference. The one exception
    is a batch item: its metadata is frozen, and its payload is a reference to an object that never changes."""
    assert is_immutable(SchedulerSnapshot)
    assert not is_immutable(dict) and not is_immutable(list)


def test_a_snapshot_does_not_change_when_the_run_goes_on(tmp_path):
    """Counters, lengths, outcomes, retries, the prompts' position, metadata: everything moves on after the snapshot."""
    stream = PromptStream(12, 0, lanes=[PromptLane(range(8), "a", 2.0), PromptLane(range(8, 12), "b", 1.0)])
    stream.task = lambda prompt: Task(f"p{prompt}", "0", "a")
    scheduler = RolloutScheduler(settings_in(tmp_path), stream, Ledger(tmp_path / "ledger.jsonl"))
    roll(scheduler, 3)
    scheduler.method.counters.run["groups"] = 1.0
    scheduler.method._lengths["0/0/0"] = [(5, 1.0)]
    snapshot = scheduler.snapshot()
    before = copy.deepcopy(snapshot)

    scheduler.method.counters.run["groups"] = 2.0
    scheduler.method.counters.prompts[3] = {"seen": 1.0}
    scheduler.method._lengths["0/0/0"].append((6, 0.0))
    take(scheduler)
    with pytest.raises(dataclasses.FrozenInstanceError):
        scheduler.current_batch[0].item.meta.rewards = [9.0]
    scheduler.step_started(now=0.0)
    scheduler.step_ended(TRAINED)
    roll(scheduler, 2)
    group, _ = scheduler.dispatch(now=0.0)
    scheduler.finish_group(group, None, failure="env_error")

    assert [item.meta for _, item in snapshot.accepted] == [item.meta for _, item in before.accepted]
    without_payloads = [dataclasses.replace(s, accepted=()) for s in (snapshot, before)]
    assert without_payloads[0] == without_payloads[1]


def test_the_metadata_that_a_snapshot_shares_has_no_field_of_a_type_that_can_change():
    """mypy then refuses `meta.rewards.append(...)` and `meta.stats[...] = ...`, which would change a snapshot."""
    fields = dataclasses.fields(GroupMeta)
    changeable = {f.name for f in fields if re.search(r"\b(list|dict|set)\b", str(f.type))}
    assert changeable == set()


def test_a_group_without_a_model_token_is_no_error_of_the_scheduler(tmp_path):
    """Its oldest version is None, which no arithmetic takes for a version of long ago."""
    scheduler = scheduler_in(tmp_path)
    for oldest_version in (None, 0):
        group, _ = scheduler.dispatch(now=0.0)
        meta, payload = group_of(group.key, 0)
        scheduler.finish_group(group, replace(meta, oldest_version=oldest_version), payload)
    assert len(take(scheduler)) == 2


def test_a_group_with_tokens_beyond_max_staleness_is_never_trained(tmp_path):
    """The gate makes sure of it; this is the check behind the gate."""
    scheduler = scheduler_in(tmp_path)
    roll(scheduler, 2)
    scheduler.version = 3
    with pytest.raises(PipelineError):
        scheduler.take_batch(BatchDecision(train=(1, 2), drop=()))


def test_a_group_that_a_suspension_has_cost_is_dispatched_again_however_often(tmp_path):
    """It does not count towards the attempts that a group has."""
    scheduler = scheduler_in(tmp_path)
    for _ in range(scheduler.max_retries + 3):
        group, _ = scheduler.dispatch(now=0.0)
        assert group.key.prompt == 0 and group.retries == 0
        assert scheduler.finish_group(group, None, failure="suspended") == GroupState.REQUEUED


def test_a_prompt_that_fails_too_often_fails_for_good(tmp_path):
    scheduler = scheduler_in(tmp_path)
    scheduler.max_retries = 1
    ends = []
    for _ in range(2):
        group, _ = scheduler.dispatch(now=0.0)
        ends.append(scheduler.finish_group(group, None, failure="env_error"))
    assert ends == [GroupState.REQUEUED, GroupState.FAILED]
    assert scheduler.dispatch(now=0.0)[0].key.prompt == 1


def test_a_prompt_whose_row_the_environment_refuses_fails_at_the_second_attempt(tmp_path):
    """Another server may know the row; more attempts would only meet the same."""
    scheduler = scheduler_in(tmp_path)
    ends = []
    for _ in range(2):
        group, _ = scheduler.dispatch(now=0.0)
        ends.append(scheduler.finish_group(group, None, failure="task_refused"))
    assert ends == [GroupState.REQUEUED, GroupState.FAILED]
    assert scheduler.dispatch(now=0.0)[0].key.prompt == 1


def test_repeated_attempts_come_before_new_prompts_oldest_first(tmp_path):
    scheduler = scheduler_in(tmp_path)
    first, second, third = (scheduler.dispatch(now=0.0)[0] for _ in range(3))
    for group in (third, first):
        scheduler.finish_group(group, None, failure="env_error")
    assert [scheduler.dispatch(now=0.0)[0].key.prompt for _ in range(3)] == [0, 2, 3]
    assert second.sequence_number in scheduler.rolling


def test_a_group_is_not_the_oldest_while_an_earlier_one_rolls_or_waits_for_a_new_attempt(tmp_path):
    scheduler = scheduler_in(tmp_path)
    first, second = (scheduler.dispatch(now=0.0)[0] for _ in range(2))
    assert scheduler.is_oldest_unfinished(first) and not scheduler.is_oldest_unfinished(second)
    scheduler.finish_group(first, None, failure="env_error")
    assert not scheduler.is_oldest_unfinished(second)
    again, _ = scheduler.dispatch(now=0.0)
    scheduler.finish_group(second, None, failure="env_error")
    assert again.key.prompt == 0 and scheduler.is_oldest_unfinished(again), "only a later one waits"


ON_POLICY = {"pipeline": {"mode": "sync"}}


def in_order(
    scheduler: RolloutScheduler, verdict: Verdict = KEEP, failure: str | None = None, retries: int = 0
) -> bool:
    """Return whether the next group would have to wait for those before it, if it ended so."""
    group, _ = scheduler.dispatch(now=0.0)
    group = replace(group, retries=retries)
    meta = None if failure else group_of(group.key, 0, verdict)[0]
    return scheduler.must_finish_in_order(group, meta, failure)


@pytest.mark.parametrize(
    ("verdict", "failure", "retries", "waits"),
    [
        (KEEP, None, 0, False),
        (Verdict(False, "zero_variance"), None, 0, True),
        (KEEP, "env_error", 0, False),  # it is dispatched again: nothing is decided yet
        (KEEP, "env_error", 5, True),
        (KEEP, "task_refused", 0, False),
        (KEEP, "task_refused", 1, True),
        (KEEP, "reward_error", 0, True),
    ],
)
def test_with_a_staleness_of_0_what_may_be_replaced_ends_in_the_order_of_dispatch(
    tmp_path, verdict, failure, retries, waits
):
    assert in_order(scheduler_in(tmp_path, **ON_POLICY), verdict, failure, retries) is waits


def test_an_accepted_group_waits_for_its_turn_where_its_end_makes_room_for_the_next_prompt(tmp_path):
    """Fewer groups roll at a time than a batch has."""
    few_at_a_time = {"rollout": {"batch_size": 2, "n_samples_per_prompt": 2, "vllm_generate_batch_size": 1}}
    assert in_order(scheduler_in(tmp_path, **few_at_a_time, **ON_POLICY))


def test_nothing_waits_for_its_turn_where_tokens_may_be_older_than_the_batch(tmp_path):
    assert not in_order(scheduler_in(tmp_path), Verdict(False, "zero_variance"))


def test_nothing_waits_for_its_turn_once_the_prompts_have_named_no_replacement(tmp_path):
    scheduler = scheduler_in(tmp_path, **ON_POLICY)
    group, _ = scheduler.dispatch(now=0.0)
    scheduler.finish_group(group, *group_of(group.key, 0, Verdict(False, "zero_variance")))
    assert not in_order(scheduler, Verdict(False, "zero_variance"))


def test_an_accepted_group_waits_for_its_turn_where_lengths_are_balanced_over_groups(tmp_path):
    assert in_order(scheduler_in(tmp_path, filter={"names": ["length_balance"]}, **ON_POLICY))
