"""GSM8K's reward, and those that verl has for its own data sources."""

from __future__ import annotations

import pytest

from openrlhf_tir.errors import ConfigError, RewardError
from openrlhf_tir.rewards import load
from openrlhf_tir.types import Task
from tests.unit.rewards.reward_fakes import in_run, reward_of, says, trajectory

GSM8K = load("gsm8k")


@pytest.mark.parametrize(
    ("text", "label", "reward"),
    [
        ("6*7 is\n#### 42", "42", 1.0),
        ("#### 42.0", "42", 1.0),
        ("#### $1,042", "1042", 1.0),
        ("#### 41\n#### 42", "42", 1.0),
        ("#### 42\n#### 41", "42", 0.0),
        ("#### -3.", "-3", 1.0),
        ("It is 42", "42", 0.0),
        ("#### forty-two", "42", 0.0),
        ("", "42", 0.0),
        ("#### 42", "We add.\n#### 42", 1.0),
        ("#### .", "42", 0.0),
        ("#### 9007199254740993", "9007199254740992", 0.0),
        ("#### 12345678901234567890", "12345678901234567890.0", 1.0),
    ],
)
def test_the_number_behind_the_last_mark_is_the_answer(text, label, reward):
    parts = GSM8K(says(text), Task("", label), in_run())
    assert (parts.reward, parts.correct) == (reward, reward > 0)


def test_whether_the_mark_was_there_is_a_fact_of_its_own():
    marked = [GSM8K(says(text), Task("", "42"), in_run()).parts["format_ok"] for text in ("#### 41", "It is 42")]
    assert marked == [1.0, 0.0]


def test_without_a_mark_the_last_number_counts_where_that_is_wanted():
    assert GSM8K(says("6*7 is 42"), Task("", "42"), in_run(options={"flexible": True})).reward == 1.0
    with pytest.raises(ConfigError, match="flexible"):
        GSM8K(says(""), Task("", "42"), in_run(options={"flexibel": True}))


def test_what_a_tool_printed_is_no_answer():
    said = trajectory(("model", "I ask. "), ("env", "#### 42"), ("model", "Hm."))
    assert GSM8K(said, Task("", "42"), in_run()).reward == 0.0


@pytest.mark.parametrize(
    ("source", "text", "label", "reward"),
    [
        ("openai/gsm8k", "#### 42", "42", 1.0),
        ("openai/gsm8k", "\\boxed{42}", "42", 0.0),
        ("lighteval/MATH", "so \\boxed{\\frac{1}{2}}", "0.5", 1.0),
        ("lighteval/MATH", "so \\boxed{3}", "0.5", 0.0),
        ("math_dapo", "Answer: $42$", "42", 1.0),
        ("math_dapo", "Answer: \\boxed{42}", "42", 1.0),
        ("aime2024", "Answer: 41", "42", -1.0),
        ("math_dapo", "nothing", "42", -1.0),
        ("math", "Answer: 42", "42", 1.0),
        ("math", "Answer: 41", "42", -1.0),
        ("searchR1_nq", "<answer>Paris</answer>", '{"target": ["paris", "Lutetia"]}', 1.0),
        ("searchR1_nq", "<answer>Rome</answer>", '{"target": ["paris"]}', 0.0),
        ("searchR1_nq", "<answer>Paris</answer>", '{"target": "paris"}', 1.0),
        (None, "so \\boxed{42}", "42", 1.0),
        (None, "so \\boxed{41}", "42", 0.0),
    ],
)
def test_verls_reward_is_chosen_by_the_data_source(source, text, label, reward):
    parts = reward_of("verl", says(text), Task("", label, extra={"data_source": source}), in_run())
    assert parts.reward == reward and parts.correct == (reward > 0)


@pytest.mark.parametrize(("source", "label"), [("my_source", "42"), (None, '{"target": ["paris"]}')])
def test_a_data_source_without_a_reward_is_an_error(source, label):
    with pytest.raises(RewardError, match=f"data_source = '?{source}'?"):
        reward_of("verl", says("42"), Task("", label, extra={"data_source": source}), in_run())
