"""Tool-N1's binary score and OTC's efficiency factor by hand."""

from __future__ import annotations

import json
import math

import pytest

from openrlhf_tir.errors import ConfigError
from openrlhf_tir.rewards.otc import grpo_group, otc_group, ppo_factor
from openrlhf_tir.rewards.tooln1 import VARIANTS, score, tooln1
from openrlhf_tir.types import ToolCall
from tests.unit.rewards.reward_fakes import group, in_run, reward_of, says, task, trajectory

TRUTH = '[{"name": "add", "arguments": {"a": 1, "b": 2}}]'


def call(text=TRUTH, think="<think>x</think> "):
    return f"{think}<tool_call>{text}</tool_call>"


@pytest.mark.parametrize(
    ("text", "scores"),  # v0, llama, v1, v2, v3, v4
    [
        (call(), (1, 1, 1.2, 1, 1.0, 1.0)),
        (call('{"name": "add", "arguments": {"b": 2, "a": 1}}'), (1, 1, 1.2, 1, 1.0, 1.0)),
        (call(think=""), (0, 0, 1, 1, 0.8, 0.8)),
        (call(TRUTH.replace("1", '"1"')), (0, 0, -0.2, 0, 0.2, 0.4)),
        (call("[]"), (0, 0, -0.2, 0, 0.2, 0.2)),
        (call("3"), (0, 0, 0, 0, 0.2, 0.2)),
        (call(json.dumps(json.dumps(TRUTH))), (0, 0, -0.2, 0, 0.2, 0.2)),
        ("<think>x</think> no", (0, 0, 0, 0, 0.2, 0.2)),
        (call(TRUTH) + call("[]", think=""), (0, 0, -0.2, 0, 0.2, 0.2)),
    ],
)
def test_the_six_variants_of_one_verdict(text, scores):
    assert tuple(score(text, TRUTH, v) for v in VARIANTS) == pytest.approx(scores)


def test_calling_nothing_is_right_where_nothing_is_to_be_called():
    assert score(call("[]"), "[]") == 1.0
    assert score("I cannot.", "[]") == 0.0
    assert score("I cannot.", "[]", "llama") == 1.0


def test_a_truth_may_be_encoded_twice_and_calls_may_come_in_any_order():
    two = '[{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}]'
    swapped = '[{"name": "b", "arguments": {}}, {"name": "a", "arguments": {}}]'
    assert score(call(swapped), two) == 1.0
    assert score(call(), '"' + TRUTH.replace('"', '\\"') + '"') == 1.0


def test_a_truth_that_is_a_lone_call_is_matched_by_nothing_as_in_the_reference():
    assert score(call(), TRUTH.strip("[]")) == 0.0
    assert score(call("[]"), TRUTH.strip("[]"), "v4_partial_reason_funcname") == 0.2
    assert score("I cannot.", TRUTH.strip("[]"), "llama") == 0.0


def test_space_that_json_does_not_know_is_stripped():
    assert score(call("\u3000[]\u3000"), "[]") == 1.0


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 3000 + "]" * 3000, '{"a":' * 990 + "1" + "}" * 990])
def test_calls_that_python_cannot_read_or_write_are_wrong(value):
    text = call(f'[{{"name": "add", "arguments": {{"a": {value}}}}}]')
    assert all(score(text, TRUTH, v) < 1 for v in VARIANTS)


def test_tooln1_is_correct_by_v0_whatever_the_variant_pays():
    r = tooln1(
        says(call(TRUTH.replace("1", "7"))),
        task(TRUTH),
        in_run(name="tooln1", options={"variant": "v4_partial_reason_funcname"}),
    )
    assert r.reward == pytest.approx(0.4)
    assert not r.correct


def test_the_factor_falls_from_one_with_every_call():
    # c = 4, m = 4: cos(4 pi / 12) = 1/2; c = 1, m = 1: cos(pi / 3) = 1/2.
    assert ppo_factor(0, 4) == 1.0
    assert ppo_factor(4, 4) == pytest.approx(0.5)
    assert ppo_factor(1, 1) == pytest.approx(0.5)


def test_a_group_is_measured_by_its_shortest_correct_response():
    # n = 2 (the wrong response with 0 calls does not count); m = 4: f = 16/6, sin(2 pi / 3).
    got = grpo_group([0, 2, 4], [0, 1, 1], [0, 1, 1], c=4)
    assert got.n == 2
    assert got.reward == pytest.approx([0.0, 1.0, 3**0.5 / 2])


def test_the_best_n_ever_seen_is_kept_and_no_n_means_no_reward():
    assert grpo_group([2], [1], [1], c=4, stored_n=1).reward == pytest.approx([3**0.5 / 2])
    assert grpo_group([1, 2], [0, 0], [0, 0], c=4) == (None, [None, None], [0.0, 0.0])


def test_without_a_call_the_factor_is_one_whatever_c():
    assert ppo_factor(0, 0) == 1.0
    assert grpo_group([0, 2], [1, 1], [1, 1], c=0).reward[0] == 1.0


def test_otc_scales_the_outcome_by_the_calls():
    one_call = trajectory(("model", "c"), ("env", "e"), ("model", r"<answer>\boxed{42}</answer>"), calls=("ok",))
    r = reward_of("otc", one_call, task("42"), in_run(name="otc", options={"c": 1}))
    assert r.reward == pytest.approx(0.5)
    assert r.correct
    assert reward_of("otc", one_call, task("41"), in_run(name="otc")).reward == 0.0


def test_a_call_that_could_not_be_read_is_no_call_of_otc():
    answered = trajectory(("model", r"<answer>\boxed{42}</answer>"), calls=("ok", "model_error"))
    assert reward_of("otc", answered, task("42"), in_run(name="otc")).reward == pytest.approx(math.cos(2 * math.pi / 7))
    answered.calls[1] = ToolCall("f(", "", "model_error", {"error_type": "malformed_call"})
    assert reward_of("otc", answered, task("42"), in_run(name="otc")).reward == pytest.approx(math.cos(math.pi / 5))


def test_otc_multiplies_any_base_reward():
    """A correct Search-R1 answer after one search: cos(pi / (2 + 4)); a wrong one of ToRL, -1 there, is 0."""
    found = trajectory(
        ("model", "<search> q </search>"), ("env", "e"), ("model", "<answer> Paris </answer>"), calls=("ok",)
    )
    on_search = in_run(name="otc", options={"base": "searchr1", "c": 4})
    assert reward_of("otc", found, task('["Paris"]'), on_search).reward == pytest.approx(math.cos(math.pi / 6))
    assert reward_of("otc", found, task('"Paris"'), on_search).correct
    assert reward_of("otc", found, task("London"), on_search).reward == 0.0
    wrong = trajectory(("model", r"\boxed{41}"))
    on_code = in_run(name="otc", options={"base": "torl", "base_options": {"wformat": True}})
    assert (
        reward_of("otc", wrong, task("42"), on_code).reward == 0.0
        and not reward_of("otc", wrong, task("42"), on_code).correct
    )


@pytest.mark.parametrize("base", ["otc", "serchr1", "mine.py:score"])
def test_what_is_no_registered_base_is_refused_by_name(base):
    with pytest.raises(ConfigError, match=r"reward\.options\.base"):
        reward_of("otc", says("x"), task("42"), in_run(name="otc", options={"base": base}))


def test_a_wrong_response_of_a_group_is_worth_nothing_however_its_reward_scores_it():
    right, wrong = (trajectory(("model", "x"), calls=("ok",), index=i) for i in range(2))
    for t, reward in ((right, 1.0), (wrong, -1.0)):
        t.reward, t.parts = reward, {"correct": float(reward > 0)}
    assert otc_group(group(right, wrong), in_run()) == [1.0, 0.0]


def test_the_fewest_calls_of_a_prompt_are_a_part_once_there_is_a_right_response():
    right, long, wrong = (
        trajectory(("model", "x"), calls=("ok",) * calls, index=i) for i, calls in enumerate((2, 3, 1))
    )
    for t in (right, long, wrong):
        t.reward = float(t is not wrong)
        t.parts = {"correct": t.reward}
    otc_group(group(right, long, wrong), in_run())
    assert [t.parts["fewest_calls"] for t in (right, long, wrong)] == [2.0] * 3
    wrong.parts = {"correct": 0.0}
    otc_group(group(wrong), in_run())
    assert "fewest_calls" not in wrong.parts
