"""ToRL's and ReTool's rewards by hand: ours, and the reference's rule behind `official`."""

from __future__ import annotations

import pytest

from openrlhf_tir.errors import ConfigError
from openrlhf_tir.rewards import load
from openrlhf_tir.rewards.retool import answer_line_score, eval_answer, printing, recipe_score, softened
from openrlhf_tir.rewards.torl import official_box
from tests.unit.rewards.reward_fakes import in_run, says, task, trajectory


def reward(name, traj, label="42", **options):
    return load(name)(traj, task(label), in_run(name=name, options=options)).reward


@pytest.mark.parametrize("name", ["torl", "retool"])
def test_a_right_box_is_one_and_anything_else_minus_one(name):
    assert reward(name, says(r"so \boxed{42.0}")) == 1.0
    assert reward(name, says(r"so \boxed{41}")) == -1.0
    assert reward(name, says("so 42")) == -1.0


@pytest.mark.parametrize("name", ["torl", "retool"])
def test_a_box_that_a_tool_printed_counts_only_for_the_reference(name):
    printed = trajectory(("model", "```python\nx\n```"), ("env", r"\boxed{42}"), calls=("ok",))
    assert reward(name, printed) == -1.0
    assert reward(name, printed, official=True) == 1.0


def test_torl_separates_a_wrong_box_from_none_when_asked():
    assert reward("torl", says(r"\boxed{41}"), wformat=True) == -0.5
    assert reward("torl", says("41"), wformat=True) == -1.0


def test_torl_charges_failed_calls_and_not_the_lack_of_code():
    failing = trajectory(("model", "c"), ("env", "e"), ("model", r"\boxed{42}"), calls=("model_error",))
    assert reward("torl", failing, execution_penalty=0.5) == 0.5
    assert reward("torl", says(r"\boxed{42}"), execution_penalty=0.5) == 1.0
    assert reward("torl", says(r"\boxed{42}"), execution_penalty=0.5, official=True) == 0.5
    mended = trajectory(("model", r"\boxed{42}"), calls=("model_error", "ok"))
    assert (reward("torl", mended, execution_penalty=0.5), reward("torl", mended, execution_penalty=0.5, official=True)) == (0.5, 1.0)


@pytest.mark.slow
def test_torls_equivalence_test_misses_what_a_boxed_comparison_sees():
    same = says(r"\boxed{\sqrt{8}}")
    assert reward("torl", same, r"2\sqrt{2}") == 1.0
    assert reward("torl", same, r"2\sqrt{2}", official=True) == -1.0


def test_torls_box_nests_three_deep():
    assert official_box(r"\boxed{a{b{c}}}") == "a{b{c}}"
    assert official_box(r"\boxed{a{b{c{d{e}}}}}") is None
    assert official_box(r"\boxed {42}") is None


@pytest.mark.parametrize(("messages", "score"), [(0, -1.1), (2, -1.0), (4, -0.9), (10, -0.6), (20, -0.6)])
def test_each_call_softens_a_wrong_answer_by_a_tenth_up_to_four(messages, score):
    assert softened(messages) == pytest.approx(score)


def test_retool_softens_only_when_asked_and_only_wrong_answers():
    called = trajectory(("model", "c"), ("env", "e"), ("model", r"\boxed{41}"), calls=("ok",))
    assert reward("retool", called) == -1.0
    assert reward("retool", called, turn_bonus=True) == pytest.approx(-0.9)
    assert reward("retool", called, label="41", turn_bonus=True) == 1.0


def test_the_recipe_compares_strings_at_the_end_of_the_response():
    assert recipe_score(r"\boxed{042}", "42", 2) == (-1.0, False, "042")
    assert recipe_score(r"\boxed{42} then \boxed{4", "42", 2) == (-1.0, False, "")
    assert recipe_score(r"\boxed{42}" + "x" * 91, "42", 2).acc is False
    assert recipe_score(r"\boxed{42}" + "x" * 90, "42", 2).acc is True


def test_the_lenient_rule_reads_the_last_answer_line():
    assert answer_line_score("Answer: 41\nAnswer: x = 42 degrees", "42") == (1.0, True, "42")
    assert answer_line_score(r"\boxed{42}", "42") == (-1.0, False, "[INVALID]")


def test_the_recipe_prints_the_last_line_whatever_it_is():
    assert printing("x=1\nx+1\n\n") == "x=1\nprint(x+1)\n\n"
    assert printing("```python\n1+1\n```") == "print(1+1)"
    assert printing("printer()") == "printer()"
    assert printing("x=1") == "print(x=1)"
    assert printing("") == ""


@pytest.mark.parametrize("name", ["torl", "retool"])
def test_unknown_options_are_refused(name):
    with pytest.raises(ConfigError, match="offical"):
        reward(name, says("x"), offical=True)


@pytest.mark.parametrize(("text", "answer"), [(r"\boxed{4{2}", "4{2}"), (r"\boxed{4", "4"), (r"\boxed{1} \boxed{2", "2"), (r"$\boxed 7$ is", "7")])
def test_the_official_evaluation_reads_an_open_box_to_the_end_of_the_text(text, answer):
    assert eval_answer(text) == answer
