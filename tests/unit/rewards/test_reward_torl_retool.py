"""ToRL's and ReTool's rewards by hand: ours, and the reference's rule behind `official`."""

from __future__ import annotations

import pytest

from openrlhf_tir.errors import ConfigError
from openrlhf_tir.rewards.retool import softened
from openrlhf_tir.rewards.torl import official_box
from tests.unit.rewards.reward_fakes import in_run, reward_of, says, task, trajectory


def reward(name, traj, label="42", **options):
    return reward_of(name, traj, task(label), in_run(name=name, options=options)).reward


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
    assert (
        reward("torl", mended, execution_penalty=0.5),
        reward("torl", mended, execution_penalty=0.5, official=True),
    ) == (0.5, 1.0)


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


@pytest.mark.parametrize("name", ["torl", "retool"])
def test_unknown_options_are_refused(name):
    with pytest.raises(ConfigError, match="offical"):
        reward(name, says("x"), offical=True)
