"""The official rules by hand."""

from __future__ import annotations

import pytest

from tests.golden.official.retool import answer_line_score, eval_answer, printing, recipe_score
from tests.golden.official.zerotir import is_quality, parse_sandbox_reply
from tests.unit.filters.test_filters import CLEAN


def test_quality_is_right_and_hardly_repetitive():
    assert is_quality(CLEAN)
    assert not is_quality({**CLEAN, "repeatness": 0.06})
    assert is_quality({**CLEAN, "repeatness": 0.06}, repeatness_threshold=0.1)


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


@pytest.mark.parametrize(
    ("text", "answer"),
    [(r"\boxed{4{2}", "4{2}"), (r"\boxed{4", "4"), (r"\boxed{1} \boxed{2", "2"), (r"$\boxed 7$ is", "7")],
)
def test_the_official_evaluation_reads_an_open_box_to_the_end_of_the_text(text, answer):
    assert eval_answer(text) == answer


def test_an_observation_is_stdout_or_the_trimmed_traceback_or_the_status():
    run = {
        "status": "Finished",
        "stdout": "7\n",
        "stderr": '  File "/t/a.py", line 3\n    1/0\n    ~^~\nZeroDivisionError\n',
    }
    assert parse_sandbox_reply({"status": "Success", "run_result": run}) == ("7\n", 0)
    assert parse_sandbox_reply({"status": "Failed", "run_result": run}) == (
        "  line 3\n    1/0\n    ~~\nZeroDivisionError\n",
        1,
    )
    assert parse_sandbox_reply({"status": "Failed", "run_result": {"status": "TimeLimitExceeded"}}) == (
        "TimeLimitExceeded",
        1,
    )
    assert parse_sandbox_reply({"status": "SandboxError"}) == (None, 1)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ({"status": "Success", "run_result": {"status": "Finished", "stdout": "1\n", "stderr": "w"}}, ("1\n", 0)),
        ({"status": "Failed", "run_result": {"status": "TimeLimitExceeded", "stdout": "1"}}, ("TimeLimitExceeded", 1)),
        ({"status": "SandboxError"}, (None, 1)),
        (
            {"status": "SandboxError", "run_result": {"status": "Finished", "stdout": "1", "stderr": "boom"}},
            ("boom", 0),
        ),
    ],
)
def test_sandboxfusion_replies_read_as_in_the_reference(reply, expected):
    assert parse_sandbox_reply(reply) == expected
