"""ZeroTIR's composite reward by hand, and where ours differs from the reference's."""

from __future__ import annotations

import pytest

from openrlhf_tir.errors import ConfigError
from openrlhf_tir.rewards.checking.text_metrics import repeatness
from openrlhf_tir.rewards.zerotir import FIXED, OFFICIAL, Facts, Flags, check_format, score
from tests.unit.rewards.reward_fakes import in_run, reward_of, says, task, trajectory

GOOD = r"we think </think> <answer> \boxed{42} </answer>"
STOPS = ("</answer>", "<|im_end|>")


def record(response, flags=None, rules=OFFICIAL, verdicts=(1.0, 0.0), finish="stop", **facts):
    given = Facts(response, finish, num_tokens=facts.pop("num_tokens", 10), stop_strings=STOPS, **facts)
    flags = flags or Flags()
    return score(given, flags, rules, check_format(given, flags, rules), verdicts, repeatness(given.response))


@pytest.mark.parametrize(
    ("verdicts", "answer"),
    [((1.0, 0.0), 1.0), ((0.0, 1.0), 1.0), ((None, 1.0), 1.0), ((0.0, -10000.0), 0.0), ((None, None), 0.0)],
)
def test_the_answer_is_the_better_of_the_two_verdicts(verdicts, answer):
    assert record(GOOD, verdicts=verdicts)["rewards"] == answer


def test_only_what_follows_the_thought_is_judged():
    assert record(GOOD)["graded_text"] == r" <answer> \boxed{42} </answer>"


@pytest.mark.parametrize("finish", ["length", "abort"])
def test_a_response_that_did_not_stop_is_not_judged(finish):
    r = record(GOOD, finish=finish)
    assert r["rewards"] == 0.0
    assert r["graded_text"] is None
    assert r["truncated"] == float(finish == "length")


@pytest.mark.parametrize(
    ("response", "official", "fixed"),
    [
        ("no tags </answer>", -3.0, -3.0),
        ("</think> <answer> 42 </answer>", -2.0, -2.0),
        (r"<answer> \boxed{42} </answer>", -1.0, -1.0),
        (GOOD + " a b c d e f", 0.5, -0.5),
    ],
)
def test_the_format_reward_and_its_sign_bug(response, official, fixed):
    flags = Flags(format_reward=True)
    assert record(response, flags, OFFICIAL)["rewards"] == official
    assert record(response, flags, FIXED)["rewards"] == fixed


def test_an_end_by_eos_alone_is_truncated_for_the_reference_and_a_stop_for_us():
    text = GOOD + " " * 25
    assert record(text, ended_by_eos=True)["other"] == 1.0
    assert record(text, rules=FIXED, ended_by_eos=True)["rewards"] == 1.0


def test_two_failures_of_two_cost_a_tenth_and_one_of_one_nothing():
    flags = Flags(code_execution=True)
    assert record(GOOD, flags, executions=[1, 1], errors=[1, 1])["rewards"] == pytest.approx(0.9)
    assert record(GOOD, flags, executions=[1], errors=[1])["rewards"] == 1.0
    assert record(GOOD, flags, verdicts=(0.0, 0.0), executions=[1, 1], errors=[1, 1])["rewards"] == 0.0


def test_the_tool_bonus_wants_code_output_and_one_success():
    code = "```python\nprint(6*7)\n```\n```output\n42\n```\n" + GOOD
    flags = Flags(tool_bonus=0.25)
    assert record(code, flags, executions=[1, 1], errors=[1, 0])["rewards"] == 1.25
    assert record(code, flags, executions=[1], errors=[1])["rewards"] == 1.0
    assert record(GOOD, flags, executions=[1], errors=[0])["rewards"] == 1.0


def test_a_loop_of_text_zeroes_a_right_answer_under_the_shortcut_flag():
    assert record("la " * 100 + GOOD, Flags(shortcut=True))["rewards"] == 0.0
    assert record("la " * 100 + GOOD)["rewards"] == 1.0


def test_overlong_counts_tokens():
    # 512 tokens of slack before 8192: 7936 is halfway.
    assert record(GOOD, Flags(overlong=True), num_tokens=7936)["rewards"] == 0.5


def test_a_trajectory_is_judged_by_what_the_model_wrote():
    cfg = in_run(name="zerotir", format="think_answer")
    honest = trajectory(
        ("model", "```python\nprint(6*7)\n```"), ("env", "\n```output\n42\n```\n"), ("model", GOOD), calls=("ok",)
    )
    r = reward_of("zerotir", honest, task("42"), cfg)
    assert r.reward == 1.0
    assert r.correct
    assert r.parts["code_count"] == r.parts["output_count"] == r.parts["code_exection_times"] == 1.0
    printed = trajectory(("model", "```python\nx\n```"), ("env", GOOD), calls=("ok",))
    assert reward_of("zerotir", printed, task("42"), cfg).reward == 0.0
    assert reward_of("zerotir", says(GOOD, finish="length"), task("42"), cfg).reward == 0.0


def test_options_switch_bonuses_and_unknown_ones_are_refused():
    cfg = in_run(name="zerotir", format="think_answer", options={"pattern_bonus": 0.5})
    assert reward_of("zerotir", says("Hmm wait, " + GOOD), task("42"), cfg).reward == 1.5
    with pytest.raises(ConfigError, match="patern"):
        reward_of("zerotir", says(GOOD), task("42"), in_run(name="zerotir", options={"patern": 1.0}))


@pytest.mark.parametrize("end", ["<|endoftext|>" * 5, "<|im_end|>\n<|im_end|>", "</s>"])
def test_marks_of_the_end_and_padding_are_no_text_after_the_answer(end):
    r = record(GOOD + end)
    assert r["rewards"] == 1.0 and r["format_answer"] == 0.0
