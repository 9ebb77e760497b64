"""What the model reads of an execution under each method's convention, by hand, without any process."""

from __future__ import annotations

import pytest

from env_servers.python_tir.conventions import CONVENTIONS, SILENT, TIMED_OUT
from env_servers.python_tir.env import PythonEnv, judge
from env_servers.python_tir.sandbox import Execution

TRACEBACK = (
    b'Traceback (most recent call last):\n  File "/tmp/a.py", line 2, in <module>\n    1/0\n    ~^~\nZeroDivisionError:'
    b" division by zero\n"
)
CRASH_AFTER_OUTPUT = Execution(b"7\n", TRACEBACK, 1, 0.1)
CRASH = Execution(b"", TRACEBACK, 1, 0.1)
SAYS_NOTHING = Execution(b"", b"", 0, 0.1)
TIMED = Execution(b"", b"", None, 0.1, killed="time_limit")
TIMED_AFTER_OUTPUT = Execution(b"half\n", b"", None, 0.1, killed="time_limit")
OUT_OF_MEMORY = Execution(b"", b"", None, 0.1, killed="memory")
EXITS = Execution(b"", b"", 3, 0.1)
TWO_PARTS = Execution(b"", "Traceback\nValueError: a\u2028b\rc\n".encode(), 1, 0.1)
INDENTED = Execution(b"", b"  | ValueError: 1\n    +----\n", 1, 0.1)
WHOLE = (
    "Traceback (most recent call last):\n  line 2, in <module>\n    1/0\n    ~~\nZeroDivisionError: division by zero"
)


@pytest.mark.parametrize(
    ("convention", "execution", "outcome", "text"),
    [
        ("zerotir", CRASH_AFTER_OUTPUT, "model_error", WHOLE + "\n"),
        ("torl", CRASH_AFTER_OUTPUT, "ok", "7\n"),
        ("retool", CRASH_AFTER_OUTPUT, "model_error", "ZeroDivisionError: division by zero"),
        ("artist", CRASH_AFTER_OUTPUT, "model_error", WHOLE),
        ("torl", CRASH, "model_error", TRACEBACK.decode().strip()),
        ("zerotir", SAYS_NOTHING, "ok", ""),
        ("torl", SAYS_NOTHING, "ok", ""),
        ("retool", SAYS_NOTHING, "ok", ""),
        ("artist", SAYS_NOTHING, "ok", SILENT),
        ("zerotir", TIMED, "model_error", "TimeLimitExceeded"),
        ("torl", TIMED, "model_error", TIMED_OUT),
        ("retool", TIMED, "model_error", TIMED_OUT),
        ("artist", TIMED, "model_error", "TimeLimitExceeded"),
        ("torl", TIMED_AFTER_OUTPUT, "ok", "half\n"),
        ("torl", OUT_OF_MEMORY, "model_error", "MemoryLimitExceeded"),
        ("retool", OUT_OF_MEMORY, "model_error", "MemoryLimitExceeded"),
        ("retool", EXITS, "model_error", "SystemExit: 3"),
        ("artist", EXITS, "model_error", "SystemExit: 3"),
        ("retool", TWO_PARTS, "model_error", "ValueError: a\u2028b\rc"),
        ("retool", INDENTED, "model_error", "+----"),
        ("verl", CRASH_AFTER_OUTPUT, "model_error", "7\n" + TRACEBACK.decode()),
        ("verl", SAYS_NOTHING, "ok", ""),
        ("verl", TIMED_AFTER_OUTPUT, "model_error", "no stdout here"),
        ("verl", OUT_OF_MEMORY, "model_error", "MemoryLimitExceeded"),
        ("verl", Execution(b"o", b"warning", 0, 0.1), "ok", "owarning"),
        ("verl", Execution(b"o" * 200, b"e" * 56, 0, 0.1), "ok", "o" * 200 + "e" * 56),
        ("verl", Execution(b"o" * 200, b"e" * 57, 0, 0.1), "ok", "o" * 128 + "...(truncated)..." + "o" * 71 + "e" * 57),
    ],
)
def test_each_method_reads_an_execution_in_its_own_way(convention, execution, outcome, text):
    step = judge(execution, convention)
    assert (step.outcome, step.observation) == (outcome, text)


def test_facts_about_an_execution_are_the_same_under_every_convention():
    assert len({str(judge(CRASH_AFTER_OUTPUT, name).signals) for name in CONVENTIONS}) == 1
    assert judge(CRASH_AFTER_OUTPUT, "torl").signals["error_type"] == "exception"


@pytest.mark.parametrize(
    "execution", [Execution(b"a" * 200 + b"b" * 201, b"", 0, 0.1), Execution(b"", b"a" * 200 + b"b" * 201, 1, 0.1)]
)
def test_retool_keeps_the_ends_of_more_than_400_characters(execution):
    assert judge(execution, "retool").observation == "a" * 200 + "..." + "b" * 200
    assert judge(Execution(b"a" * 400, b"", 0, 0.1), "retool").observation == "a" * 400


class OneCrash:
    async def run(self, code):
        return CRASH_AFTER_OUTPUT


async def test_a_sessions_task_asks_for_its_convention_and_a_strange_one_is_refused():
    env = PythonEnv(OneCrash())
    await env.reset({"observation": "torl", "label": "7"}, seed=0)
    assert (await env.step("1", 5.0)).observation == "7\n"
    with pytest.raises(ValueError, match=r"task\[\"observation\"\] .*'tolr'\. .*: zerotir, torl, retool, artist, verl"):
        await env.reset({"observation": "tolr"}, seed=0)
