"""A row that its own tests contradict is refused, and never a reward; what that costs is paid once."""

from __future__ import annotations

import asyncio
import re

import pytest

from env_servers.python_tir.sandbox import SandboxError
from env_servers.swe.rows import Rows, RowUnfit, fault_of
from env_servers.swe.sources import Source
from env_servers.swe.suite import Outcome, Suite
from env_servers.swe.task import SweTask

SOURCE = Source("lib", {}, Suite({}))
FAILED, PASSES = Outcome({"t.py::a": "failed"}), Outcome({"t.py::a": "passed"})


def task(fail=("t.py::a",), ok=(), **more):
    return SweTask.model_validate(
        {
            "repo": "o/lib",
            "base_commit": "c0",
            "test_patch": "p",
            "FAIL_TO_PASS": list(fail),
            "PASS_TO_PASS": list(ok),
            **more,
        }
    )


@pytest.mark.parametrize(
    ("row", "outcome", "message"),
    [
        (task(), FAILED, None),
        (task(ok=["t.py::b"]), Outcome({"t.py::a": "failed", "t.py::b": "passed", "t.py::c": "passed"}), None),
        (
            task(["t.py::nope"]),
            FAILED,
            " o/lib .* c0: FAIL_TO_PASS .*'t.py::nope', .*pytest",
        ),
        (task(ok=["t.py::nope"]), FAILED, "PASS_TO_PASS .*'t.py::nope', .*pytest"),
        (
            task(["t.py::a", "t.py::b"]),
            Outcome({"t.py::a": "failed", "t.py::b": "passed"}),
            "FAIL_TO_PASS [^']*'t.py::b', (?!.*pytest)",
        ),
        (
            task([f"t.py::{i}" for i in range(5)]),
            FAILED,
            "'t.py::0', 't.py::1', 't.py::2' \\w+ 2 .*pytest",
        ),
        # What only the patch makes importable is not there before it; what passes before it has to be.
        (task(), Outcome({"t.py": "failed"}), None),
        (task(["d/t.py::a"]), Outcome({"d/__init__.py": "failed"}), None),
        (
            task(ok=["t.py::b"]),
            Outcome({"t.py": "failed"}, failures={"t.py": "No module named 'numpy'"}),
            "PASS_TO_PASS .*'t.py::b', .*pytest.* \\(No module named 'numpy'\\)",
        ),
        (task(["t.py::a"]), Outcome({"u.py": "failed"}), "FAIL_TO_PASS .*'t.py::a', .*pytest"),
        # Parameters may come from the code; a name that was cut at a blank never comes.
        (
            task(ok=["t.py::b"]),
            Outcome({"t.py::a": "failed", "t.py::b": "failed"}, failures={"t.py::b": "no data"}),
            "PASS_TO_PASS .*'t.py::b', (?!.*pytest).* \\(no data\\)",
        ),
        (
            task(ok=["t.py::b"]),
            Outcome({"t.py::a": "failed", "t.py::b": "skipped"}),
            "PASS_TO_PASS .*'t.py::b', (?!.*pytest)",
        ),
        (task(["t.py::a[new]"]), Outcome({"t.py::a[old]": "failed"}), None),
        (task(["t.py::a[x"]), Outcome({"t.py::a[x y]": "failed"}), "FAIL_TO_PASS .*'t.py::a\\[x', .*pytest"),
        (task(["t.py::b[x]"]), Outcome({"t.py::a[x]": "failed"}), "FAIL_TO_PASS .*'t.py::b\\[x\\]', .*pytest"),
        # Nothing is told by a run that was cut, and by no report only where tests are to pass.
        (task(), Outcome({}, "time_limit"), None),
        (task(ok=["t.py::b"]), Outcome({}, "time_limit"), None),
        (task(), Outcome({}, "no_report"), None),
        (task(ok=["t.py::b"]), Outcome({}, "no_report"), "PASS_TO_PASS (?!.*t.py)"),
    ],
)
def test_faults_of_a_row_are_found_by_its_tests_on_the_unpatched_repository(row, outcome, message):
    fault = fault_of(row, outcome)
    if message is None:
        assert fault is None
    else:
        assert fault is not None
        with pytest.raises(ValueError, match=message):
            raise ValueError(fault)


def test_a_row_is_unfit_if_all_of_its_tests_pass_without_a_patch():
    row = SweTask.model_validate({"repo": "f", "files": {"f.py": ""}, "tests": {"test_f.py": ""}})
    passed = {"t.py::a": "passed"}
    assert re.search(r"\bf: .*`files`", fault_of(row, Outcome(passed)) or "")
    for outcome in (Outcome({**passed, "t.py::b": "failed"}), Outcome({}, "time_limit"), Outcome({})):
        assert fault_of(row, outcome) is None


class Tests:
    """A stand-in for the sandbox: each run gives the next outcome, when `go` is set."""

    __test__ = False

    def __init__(self, *outcomes: Outcome | Exception) -> None:
        self.outcomes, self.go, self.runs = [*outcomes], asyncio.Event(), 0
        self.go.set()

    async def __call__(self, source: Source) -> Outcome:
        self.runs += 1
        await self.go.wait()
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


async def test_the_tests_of_a_row_are_tried_once_per_row():
    tests = Tests(FAILED, PASSES)
    rows = Rows(tests)
    for _ in range(3):
        await (await rows.at_start(task(), SOURCE))()
    assert tests.runs == 1
    for _ in range(2):
        with pytest.raises(ValueError, match=r"FAIL_TO_PASS .*'t\.py::a'"):
            await rows.at_start(task(base_commit="c1"), SOURCE)
    assert tests.runs == 2


async def test_sessions_that_started_before_the_row_was_found_unfit_are_not_judged():
    tests = Tests(PASSES)
    tests.go.clear()
    rows = Rows(tests, wait_s=0.0)
    first, second = await rows.at_start(task(), SOURCE), await rows.at_start(task(), SOURCE)
    judging = [asyncio.create_task(j()) for j in (first, second)]
    await asyncio.sleep(0)
    judging[0].cancel()
    tests.go.set()
    with pytest.raises(RowUnfit, match=r"FAIL_TO_PASS .*'t\.py::a'"):
        await judging[1]
    with pytest.raises(RowUnfit):
        await first()
    with pytest.raises(ValueError, match=r"FAIL_TO_PASS .*'t\.py::a'"):
        await rows.at_start(task(), SOURCE)
    assert tests.runs == 1, "one run for all of them, whoever gave up"


async def test_a_failed_sandbox_says_nothing_about_the_row_which_is_tried_again():
    rows = Rows(tests := Tests(SandboxError("broken"), FAILED))
    with pytest.raises(SandboxError, match="broken"):
        await rows.at_start(task(), SOURCE)
    await (await rows.at_start(task(), SOURCE))()
    assert tests.runs == 2
