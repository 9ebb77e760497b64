"""The text the model reads (ZeroTIR's convention), without any process."""

from __future__ import annotations

import pytest

from env_servers.python_tir.env import judge
from env_servers.python_tir.observation import clean_traceback
from env_servers.python_tir.sandbox import Execution


def execution(stdout=b"", stderr=b"", return_code=0, **fields) -> Execution:
    return Execution(stdout, stderr, return_code, seconds=0.1, **fields)


def test_a_success_shows_stdout_without_warnings():
    assert judge(execution(b"1\n", b"warn")).observation == "1\n"


def test_an_exception_is_the_traceback_without_files_and_carets():
    stderr = (
        b'Traceback (most recent call last):\n  File "/tmp/a.py", line 3, in <module>\n    1/0\n   '
        b" ~^~\nZeroDivisionError: division by zero\n"
    )
    step = judge(execution(b"7\n", stderr, 1))
    assert (
        step.observation
        == "Traceback (most recent call last):\n  line 3, in <module>\n    1/0\n    ~~\nZeroDivisionError: division by"
        " zero\n"
    )
    assert (step.outcome, step.signals["error_type"], step.signals["executed"]) == ("model_error", "exception", True)


@pytest.mark.parametrize(
    ("fields", "error_type", "text"),
    [
        ({"return_code": None, "killed": "time_limit"}, "time_limit", "TimeLimitExceeded"),
        ({"return_code": -24}, "time_limit", "TimeLimitExceeded"),
        ({"return_code": None, "killed": "memory"}, "memory", "MemoryLimitExceeded"),
        ({"return_code": 1, "stderr": b"Traceback\nMemoryError\n"}, "memory", "Traceback\nMemoryError\n"),
        ({"return_code": None, "killed": "output_flood", "stdout": b"yy"}, "output_flood", "yy"),
        ({"return_code": 1, "compiled": False, "stderr": b"SyntaxError: x\n"}, "syntax", "SyntaxError: x\n"),
        ({"return_code": 3}, "exception", ""),
        ({"return_code": None}, "exception", ""),
    ],
)
def test_every_failure_is_a_model_error_with_its_type(fields, error_type, text):
    step = judge(execution(**fields))
    assert (step.outcome, step.signals["error_type"], step.observation) == ("model_error", error_type, text)


def test_several_frames_lose_their_file_names():
    assert (
        clean_traceback('  File "/a", line 1, in f\n  File "<string>", line 2, in g\n')
        == "  line 1, in f\n  line 2, in g\n"
    )
