"""What an agent file returned, against what the engine recorded: only sampled tokens are trained, each with its own
log-prob and version."""

from __future__ import annotations

import numpy as np
import pytest

from openrlhf_tir.errors import AgentError
from openrlhf_tir.rollout.protocols.agent_file.outcome import trajectory
from openrlhf_tir.rollout.protocols.agent_file.record import Record
from openrlhf_tir.types import Completion, Sampling
from tests.unit.rollout.test_episode import CharCodec

PROMPT = [1, 2, 3]


def completion(ids, version=7):
    n = len(ids)
    return Completion(
        np.array(ids, np.int32),
        np.linspace(-1, -0.1, n).astype(np.float32),
        np.full(n, version, np.int32),
        "x" * n,
        "stop",
    )


def record_of(*sampled, temperature=1.0):
    record = Record(keep_s=60)
    for before, ids, version in sampled:
        record.add(before, Sampling(8, temperature=temperature), completion(ids, version), now=0.0)
    return record


def said(tokens, ranges, **more):
    result = {
        "observation_tokens": tokens,
        "action_ranges": ranges,
        "reward": 1.0,
        "scores": None,
        "truncated": False,
        "extra_logs": {},
    }
    return {"result": result | more, "calls": []}


def made(what, record, *, prompt=PROMPT, max_len=100, temperature=1.0):
    return trajectory(what, 4, prompt, record, CharCodec(), max_len=max_len, temperature=temperature)


TWO_TURNS = [*PROMPT, 50, 60, 61, 70, 80]
RECORDED = ((PROMPT, [50], 7), ([*PROMPT, 50, 60, 61], [70], 8))


def test_what_lies_between_and_behind_the_ranges_is_never_trained():
    t = made(said(TWO_TURNS, [[3, 4], [6, 7]]), record_of(*RECORDED))
    assert t.prompt_ids.tolist() == PROMPT and t.token_ids.tolist() == TWO_TURNS[3:]
    assert t.is_model.tolist() == [True, False, False, True, False]
    assert t.versions.tolist() == [7, -1, -1, 8, -1], "the versions that sampled them"
    assert t.index == 4 and t.reward == 1.0 and t.parts["correct"] == 1.0


def test_a_range_that_the_engine_did_not_sample_fails_the_sample():
    with pytest.raises(AgentError, match=r"action_ranges.*\(3, 4\)"):
        made(said([*PROMPT, 51], [[3, 4]]), record_of(*RECORDED))
    with pytest.raises(AgentError, match=r"\b6\b"):  # the same token after another context has another log-prob
        made(said([*PROMPT, 50, 60, 62, 70], [[3, 4], [6, 7]]), record_of(*RECORDED))


def test_a_range_may_leave_out_the_end_of_what_was_sampled():
    t = made(said([*PROMPT, 50, 51, 90], [[3, 5]]), record_of((PROMPT, [50, 51, 52, 53], 7)))
    assert t.is_model.tolist() == [True, True, False]
    assert t.logprobs[:2].tolist() == pytest.approx([-1.0, -0.7])


def test_two_samples_with_the_same_tokens_take_one_record_each():
    record = record_of((PROMPT, [50], 7), (PROMPT, [50], 9))
    assert {made(said([*PROMPT, 50], [[3, 4]]), record).oldest_version for _ in range(2)} == {7, 9}
    assert len(record) == 0


def test_a_prompt_that_the_file_replaced_is_the_trajectorys_own():
    t = made(said([9, 9, 50], [[2, 3]]), record_of(([9, 9], [50], 7)))
    assert t.prompt_ids.tolist() == [9, 9] and t.token_ids.tolist() == [50]
    longer = made(said([*PROMPT, 4, 50], [[4, 5]]), record_of(([*PROMPT, 4], [50], 7)))
    assert longer.prompt_ids.tolist() == PROMPT and longer.is_model.tolist() == [False, True], (
        "what reset added is an observation"
    )


def test_tokens_beyond_the_longest_sequence_are_cut_as_openrlhf_cuts_them():
    t = made(said(TWO_TURNS, [[3, 4], [6, 7]]), record_of(*RECORDED), max_len=6)
    assert t.token_ids.tolist() == [50, 60, 61] and t.is_model.tolist() == [True, False, False]


def test_a_result_without_sampled_tokens_is_failed_not_zero():
    t = made(said(PROMPT, []), record_of())
    assert t.failed == "agent_silent" and t.reward is None


def test_ranges_out_of_order_and_another_temperature_are_refused():
    with pytest.raises(AgentError, match="action_ranges"):
        made(said(TWO_TURNS, [[6, 7], [3, 4]]), record_of(*RECORDED))
    with pytest.raises(AgentError, match=r"0\.5"):
        made(said([*PROMPT, 50], [[3, 4]]), record_of((PROMPT, [50], 7), temperature=0.5))


def test_scores_are_what_filters_see_and_no_reward_is_left_to_the_run():
    t = made(
        said([*PROMPT, 50], [[3, 4]], reward=-0.5, scores=1.0, extra_logs={"turns": 2.0}), record_of((PROMPT, [50], 7))
    )
    assert (t.reward, t.parts) == (-0.5, {"turns": 2.0, "correct": 1.0})
    assert made(said([*PROMPT, 50], [[3, 4]], reward=None), record_of((PROMPT, [50], 7))).reward is None


def test_what_no_trajectory_takes_is_forgotten_after_a_groups_deadline():
    record = record_of(*RECORDED)
    record.add([1], Sampling(8), completion([2]), now=61.0)
    assert len(record) == 1 and record.take([1], [2]) is not None
