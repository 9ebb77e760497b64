"""Numbers with Python: the problems are right, reproducible and split; the reward looks at the result alone."""

from __future__ import annotations

import re

import numpy as np
import pytest

from miniatures import numbers
from miniatures.numbers_reward import last_number, right
from openrlhf_tir.rewards.context import RewardContext
from openrlhf_tir.types import Segment, Task, ToolCall, Trajectory

PROMPT = numbers.PROMPTS[numbers.PROMPT]


def asked(row) -> str:
    return row["prompt"][1]["content"]


def test_there_are_at_least_eight_trained_kinds_and_two_that_are_never_trained():
    trained = {row["meta"]["kind"] for row in numbers.training_rows(400, 7, PROMPT)}
    held_out = {row["meta"]["kind"] for row in numbers.held_out_rows(PROMPT)}
    assert trained == set(numbers.TRAINED)
    assert held_out - trained == set(numbers.UNSEEN)
    assert len(trained) >= 8
    assert len(numbers.UNSEEN) >= 2


def test_rows_follow_from_the_seed_and_the_test_rows_are_the_same_for_every_seed(tmp_path):
    first, second = (numbers.write_rows(tmp_path / str(seed), seed, train=40) for seed in (1, 2))
    again = numbers.write_rows(tmp_path / "again", 1, train=40)
    assert first[0].read_text() == again[0].read_text() != second[0].read_text()
    assert first[1].read_text() == second[1].read_text()


def test_no_question_of_the_test_split_is_trained_and_none_occurs_twice():
    train = [asked(row) for seed in range(5) for row in numbers.training_rows(500, seed, PROMPT)]
    test = [asked(row) for row in numbers.held_out_rows(PROMPT)]
    assert set(train).isdisjoint(test)
    assert len(set(test)) == len(test) == numbers.PER_KIND * len(numbers.TRAINED | numbers.UNSEEN)
    assert len({asked(row) for row in numbers.training_rows(500, 0, PROMPT)}) == 500


@pytest.mark.parametrize(
    ("kind", "pattern", "compute"),
    [
        ("expression", r"the value of (.*)\. Then", lambda text: eval(text)),
        ("product", r"the value of (.*)\. Then", lambda text: eval(text)),
        ("total", r"the value of (.*)\. Then", lambda text: eval(text)),
        ("difference", r"the value of (.*)\. Then", lambda text: eval(text)),
        ("power", r"(\d+) to the power of (\d+)", lambda a, b: int(a) ** int(b)),
        ("steps", r"(\d+) multiplied by (\d+), plus (\d+)", lambda a, b, c: int(a) * int(b) + int(c)),
        ("minutes", r"(\d+) hours and (\d+) minutes", lambda a, b: 60 * int(a) + int(b)),
        ("year", r"(\d+) years after (\d+)", lambda a, b: int(a) + int(b)),
        ("seats", r"(\d+) rows of (\d+) seats", lambda a, b: int(a) * int(b)),
        ("coins", r"has (\d+) coins and gives away (\d+)", lambda a, b: int(a) - int(b)),
        ("quotient", r"(\d+) divided by (\d+)", lambda a, b: int(a) / int(b)),
        ("eggs", r"(\d+) cartons of (\d+) eggs", lambda a, b: int(a) * int(b)),
    ],
)
def test_the_answer_follows_from_the_question(kind, pattern, compute):
    rows = [row for row in numbers.held_out_rows(PROMPT) if row["meta"]["kind"] == kind]
    assert len(rows) == numbers.PER_KIND
    for row in rows:
        assert str(compute(*re.search(pattern, asked(row)).groups())).removesuffix(".0") == row["label"]


def test_without_a_tool_no_code_is_asked_for(tmp_path):
    train, test = numbers.write_rows(tmp_path, 0, train=4, tool=False)
    assert "ython" not in train.read_text() + test.read_text()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The value is 1,039.", "1039"),
        ("12.0", "12"),
        ("12.5", None),
        ("53-52", "52"),
        ("it is -4", "-4"),
        ("007", "7"),
        ("none", None),
        ("in 1999, 7 of them", "7"),
    ],
)
def test_the_last_number_is_read_as_python_prints_it(text, number):
    assert last_number(text) == number


def scored(text: str, *calls: ToolCall, label: str = "12") -> dict[str, float]:
    segment = Segment("model", np.zeros(1, np.int32), np.zeros(1, np.float32), np.zeros(1, np.int32), text)
    result = right(Trajectory(0, np.zeros(0, np.int32), [segment], [*calls]), Task("", label), RewardContext())
    assert result.reward == float(result.correct) == result.parts["correct"]
    return result.parts


def test_what_python_printed_counts_and_else_the_last_number_that_was_said():
    assert scored("```python\nprint(3 * 4)\n```\n", ToolCall("print(3 * 4)", "12\n", "ok"))["printed"] == 1
    assert scored("It is 12.")["only_said"] == 1
    assert scored("print(3 * 5). So 12", ToolCall("print(3 * 5)", "15\n", "ok"))["only_said"] == 1
    assert scored("It is 15.")["correct"] == 0
    assert scored("")["correct"] == 0


def test_a_number_in_the_message_of_an_error_is_no_answer():
    assert scored("x", ToolCall("1/0", "File line 12", "model_error"))["correct"] == 0


@pytest.mark.parametrize(
    ("text", "number"), [("9" * 5000, "9" * 5000), ("-" + "0" * 5000 + "7", "-7"), ("-0", "0"), ("007", "7")]
)
def test_a_number_of_any_length_is_read(text, number):
    assert last_number(text) == number
