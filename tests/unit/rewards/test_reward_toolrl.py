"""ToolRL's score by hand."""

from __future__ import annotations

import json

import pytest

from openrlhf_tir.config import Reward
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.rewards.context import RewardContext, RunFacts
from openrlhf_tir.rewards.toolrl import Variant, score, thought_length, toolrl
from tests.unit.rewards.reward_fakes import in_run, says, task


def step(*calls, think="hm"):
    lines = "\n".join(json.dumps({"name": name, "parameters": params}) for name, params in calls)
    return f"<think>{think}</think>\n<tool_call>\n{lines}\n</tool_call>"


WEATHER = ("weather", {"city": "Paris", "unit": "C"})
TIME = ("time", {"zone": "UTC"})
TRUTH = step(WEATHER)


@pytest.mark.parametrize(
    ("calls", "right"),
    [
        ([WEATHER], 3.0),
        # One of two values wrong: name 1, keys 1, values 1 of Smax 1 + 1 + 2: 6 * 3/4 - 3.
        ([("weather", {"city": "Paris", "unit": "F"})], 1.5),
        # A parameter missing: name 1, keys 1/2, values 1: 6 * 2.5/4 - 3.
        ([("weather", {"city": "Paris"})], 0.75),
        # One too many: keys 2/3, values 2: 6 * (11/3)/4 - 3.
        ([("weather", {"city": "Paris", "unit": "C", "day": 1})], 2.5),
        ([("climate", {"city": "Paris", "unit": "C"})], -3.0),
        # The same call twice: name 1/2, the rest full: 6 * 3.5/4 - 3.
        ([WEATHER, WEATHER], 2.25),
    ],
)
def test_correctness_is_the_share_of_what_was_asked(calls, right):
    assert score(step(*calls), TRUTH)[1:3] == pytest.approx((1.0, right))


def test_the_order_of_calls_is_free():
    assert score(step(TIME, WEATHER), step(WEATHER, TIME)).score == 4.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<think>x</think>\nhello",
        "<think>x</think>\n<tool_call>\nnot json\n</tool_call>",
        TRUTH.replace("parameters", "arguments"),
    ],
)
def test_what_does_not_parse_as_a_call_is_as_wrong_as_can_be(text):
    assert score(text, TRUTH).correctness == -3.0


@pytest.mark.parametrize("mark", ["</tool_call> <tool_call>\n{}", "<tool_call>\n{}\n<tool_call>\n</tool_call>"])
def test_calls_are_what_follows_the_first_opening_tag_up_to_any_tag(mark):
    """As the reference splits; such a text has no format."""
    right = json.dumps({"name": WEATHER[0], "parameters": WEATHER[1]})
    assert score(mark.format(right), TRUTH)[1:3] == (0.0, 3.0)


def test_a_target_needs_no_closing_tag_for_its_calls():
    assert score(TRUTH, TRUTH.removesuffix("\n</tool_call>")).correctness == 3.0


def test_one_newline_between_the_blocks_is_mandatory():
    assert score(TRUTH.replace("</think>\n", "</think>\n\n"), TRUTH)[:3] == (3.0, 0.0, 3.0)


def test_a_truth_without_calls_grades_the_format_only():
    truth = "<think>x</think>\n<response>hi</response>"
    assert score("<think>y</think>\n<response>other</response>", truth).score == 1.0
    assert score(TRUTH, truth).score == 0.0


def test_the_ablations():
    wrong_value = step(("weather", {"city": "Paris", "unit": "F"}))
    assert score(wrong_value, TRUTH, Variant(coarse=True)).correctness == -3.0
    assert score(wrong_value, TRUTH, Variant(intermediate=True)).correctness == 0.0
    assert score(wrong_value, TRUTH, Variant(equal_max=True)).correctness == 0.5
    assert score(TRUTH, TRUTH, Variant(two_stage=True), step=29)[1:3] == (1.0, 1.0)
    assert score(TRUTH, TRUTH, Variant(two_stage=True), step=30)[1:3] == (0.5, 3.0)
    assert score(TRUTH, TRUTH, Variant(dynamic=True), step=75)[1:3] == (1.5, 2.5)


def test_a_long_thought_pays_up_to_one():
    assert thought_length("<think>" + "w " * 256 + "</think>", 512) == 0.5
    assert thought_length("<think>" + "w " * 2000 + "</think>", 512) == 1.0
    assert thought_length("no thought", 512) == 0.0


def test_a_trajectory_is_correct_only_when_all_is():
    cfg = in_run(name="toolrl")
    perfect = toolrl(says(TRUTH), task(TRUTH), cfg)
    assert perfect.reward == 4.0
    assert perfect.correct
    sloppy = toolrl(says(TRUTH + " bye"), task(TRUTH), cfg)
    assert sloppy.reward == 3.0
    assert not sloppy.correct


@pytest.mark.parametrize(("update", "value"), [(115, 2.0), (116, 3.5)])
def test_a_variant_counts_the_papers_steps_of_several_updates(update, value):
    """two_stage: before step 30 correctness / 3 + format, then correctness + format / 2. The first four updates are
    step 1, so that step 30 begins with update 116."""
    context = RewardContext.of(
        Reward(name="toolrl", options={"two_stage": True, "updates_per_step": 4}), RunFacts(update=update)
    )
    assert toolrl(says(TRUTH), task(TRUTH), context).reward == value


def test_a_step_of_no_updates_is_refused():
    with pytest.raises(ConfigError, match="updates_per_step = 0 "):
        toolrl(says(TRUTH), task(TRUTH), in_run(name="toolrl", options={"updates_per_step": 0}))


@pytest.mark.parametrize(("update", "words", "paid"), [(0, 384, 0.99), (104, 640, 1.0), (104, 320, 0.5)])
def test_a_growing_length_is_rewarded_without_being_asked_for_a_length_besides(update, words, paid):
    """The target is 384 + 256 t / 105 words at step t: 386.4 at the first step, update 0, and 640 at step 105."""
    context = RewardContext.of(Reward(name="toolrl", options={"dynamic_length": True}), RunFacts(update=update))
    scored = toolrl(says(step(WEATHER, think="w " * words)), task(TRUTH), context)
    assert (scored.reward, scored.parts["length"]) == (4.0 + paid, paid)
    assert score(step(WEATHER, think="w " * words), TRUTH, Variant(dynamic_length=True), update).length == 0.0, (
        "the reference's flag alone"
    )


def test_variants_that_are_combined_go_on_from_each_others_bounds():
    """equal_max and dynamic at step 75: correctness runs from 2 + (1 - 2) / 2 = 1.5; format from 2 - (2 - 1) / 2 = 1.5.
    two_stage and dynamic at step 75: format's top is 2 - (2 - 0.5) / 2 = 1.25."""
    assert score(TRUTH, TRUTH, Variant(equal_max=True, dynamic=True), 75)[:3] == (3.0, 1.5, 1.5)
    assert score(TRUTH, TRUTH, Variant(two_stage=True, dynamic=True), 75).format == 1.25
