"""RunState: one call per transition, four books that agree, and a cut that loses nothing."""

from __future__ import annotations

import copy
import dataclasses
import typing

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.data.stream import Lane, PromptStream
from openrlhf_tir.errors import ConservationError, PipelineError
from openrlhf_tir.pipeline.state import Cut, RunState
from openrlhf_tir.replay.ledger import Ledger, audit
from openrlhf_tir.types import TERMINAL, BatchItem, GroupState, StepReport, Task
from tests.pipeline.fakes import FakePrompts, group_of


def state_in(directory, prompts: int = 10) -> RunState:
    sections = {
        "actor": {"num_gpus_per_node": 1},
        "rollout": {"batch_size": 2, "n_samples_per_prompt": 2},
        "pipeline": {"max_staleness": 2, "depth": 6},
    }
    return RunState(
        Config.model_validate({"run_dir": directory, **sections}),
        FakePrompts(prompts),
        Ledger(directory / "ledger.jsonl"),
    )


def rolled(state: RunState, n: int) -> None:
    """n prompts are issued, rolled and accepted."""
    for _ in range(n):
        assert state.may_issue()
        flight, _ = state.issue(0.0)
        assert state.settle(flight, *group_of(flight.key, 0), None) == GroupState.BUFFERED


def test_a_state_is_terminal_when_its_group_gives_back_the_slot():
    assert set(GroupState) - TERMINAL == {GroupState.ROLLING, GroupState.BUFFERED, GroupState.TRAINING}


def test_every_group_is_in_one_place_and_the_books_agree_all_the_way(tmp_path):
    state = state_in(tmp_path)
    rolled(state, 3)
    assert state.may_issue()
    state.issue(0.0)
    state.check()
    assert [i.meta.key.prompt for i in state.take()] == [0, 1]
    state.check()
    assert (len(state.rolling), len(state.replay), len(state.in_hand), len(state.flights)) == (1, 1, 2, 4)
    state.begin_step()
    state.trained(StepReport(1, {}, 1.0, 8))
    state.check()
    assert (state.version, len(state.in_hand), state.budget.states[GroupState.TRAINED]) == (1, 0, 2)


def test_the_depth_is_told_how_long_steps_take_and_how_far_apart_they_begin(tmp_path):
    state = state_in(tmp_path)
    told = []
    state.depth.stepped = lambda seconds, period: told.append((seconds, period))
    for version, begins in enumerate((10.0, 17.0, 23.5), start=1):
        rolled(state, 2)
        state.take()
        state.begin_step(begins)
        state.trained(StepReport(version, {}, 1.0, 8))
        state.stepped(4.0)
    assert told == [(4.0, None), (4.0, 7.0), (4.0, 6.5)]


def test_a_group_that_vanishes_from_the_batch_in_hand_is_missed(tmp_path):
    state = state_in(tmp_path)
    rolled(state, 2)
    state.take()
    state.in_hand.pop()
    with pytest.raises(ConservationError, match="training: 2 in the books, 1 in fact"):
        state.cut()


def test_there_is_no_cut_in_the_middle_of_a_step(tmp_path):
    state = state_in(tmp_path)
    rolled(state, 2)
    state.take()
    state.begin_step()
    with pytest.raises(PipelineError, match="in the middle of the step on version 0"):
        state.cut()


def test_what_was_in_hand_is_buffered_after_a_resume_and_what_rolled_is_issued_again_first(tmp_path):
    state = state_in(tmp_path)
    rolled(state, 3)
    assert state.may_issue()
    state.issue(0.0)
    state.take()
    cut = state.cut()
    assert [flight.key.prompt for flight, _ in cut.accepted] == [0, 1, 2]
    again = state_in(tmp_path)
    again.restore(cut.facts, cut.version, cut.accepted)
    again.check()
    assert (len(again.replay), len(again.in_hand), len(again.rolling)) == (3, 0, 0)
    assert again.issue(0.0)[0].key == (0, 3, 1)
    assert audit(tmp_path / "ledger.jsonl").errors == []


def test_a_batch_whose_step_changed_nothing_fails_and_the_version_stays(tmp_path):
    state = state_in(tmp_path)
    rolled(state, 2)
    state.take()
    state.begin_step()
    state.not_trained("nonfinite_gradient")
    state.check()
    assert (state.version, state.stepping, state.budget.states[GroupState.FAILED]) == (0, False, 2)
    assert audit(tmp_path / "ledger.jsonl").ended == {"failed(nonfinite_gradient)": 2}


def immutable(kind) -> bool:
    """Whether values of this type, and all that they hold, can never change."""
    if kind in (int, float, str, bytes, bool, type(None)):
        return True
    if typing.get_origin(kind) is tuple:
        return all(immutable(part) for part in typing.get_args(kind) if part is not Ellipsis)
    if dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen:
        return kind is BatchItem or all(map(immutable, typing.get_type_hints(kind).values()))
    return issubclass(kind, tuple) and all(map(immutable, typing.get_type_hints(kind).values()))


def test_a_cut_can_hold_nothing_that_goes_on_changing():
    """A dictionary or a list among its fields would be handed to the background writer by reference. The one exception
    is a batch item, whose metadata is copied: see the next test."""
    assert immutable(Cut)
    assert not immutable(dict) and not immutable(list)


def test_what_happens_after_a_cut_is_not_in_it(tmp_path):
    """Counters, lengths, outcomes, retries, the prompts' position, metadata: everything moves on after the cut."""
    stream = PromptStream(12, 0, lanes=[Lane(range(8), "a", 2.0), Lane(range(8, 12), "b", 1.0)])
    state = state_in(tmp_path)
    stream.task = lambda prompt: Task(f"p{prompt}", "0", "a")
    state.source.prompts = stream
    rolled(state, 3)
    state.method.counters.run["groups"] = 1.0
    state.method._lengths["0/0/0"] = [(5, 1.0)]
    cut = state.cut()
    metas = [item.meta for _, item in cut.accepted]
    before = copy.deepcopy((cut.facts, metas))
    state.method.counters.run["groups"] = 2.0
    state.method.counters.prompts[3] = {"seen": 1.0}
    state.method._lengths["0/0/0"].append((6, 0.0))
    state.take()
    state.in_hand[0][1].meta.rewards.append(9.0)
    state.begin_step()
    state.trained(StepReport(1, {}, 1.0, 8))
    rolled(state, 2)
    flight, _ = state.issue(0.0)
    state.settle(flight, None, None, "env_error")
    assert (cut.facts, [item.meta for _, item in cut.accepted]) == before


def test_a_group_without_a_model_token_is_trained_like_any_other(tmp_path):
    """Its oldest version is None, which no arithmetic takes for a version of long ago."""
    state = state_in(tmp_path)
    for oldest in (None, 0):
        flight, _ = state.issue(0.0)
        meta, group = group_of(flight.key, 0)
        meta.oldest_version = oldest
        state.settle(flight, meta, group, None)
    assert len(state.take()) == 2


def test_a_group_that_a_suspension_has_cost_is_issued_again_however_often(tmp_path):
    """It does not count towards train.max_reissues."""
    state = state_in(tmp_path)
    for _ in range(state.max_reissues + 3):
        flight, _ = state.issue(0.0)
        assert flight.key.prompt == 0 and flight.reissues == 0
        assert state.settle(flight, None, None, "suspended") == GroupState.REQUEUED
