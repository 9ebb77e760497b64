"""What a copy of the tests says against the true ones, and which of them have to pass once more."""

from __future__ import annotations

import random

import pytest

from env_servers.swe.examine import FORGED, _required, contradiction, failing_functions
from env_servers.swe.falsify import FalseCopy, Falsifier
from env_servers.swe.remote import judging
from env_servers.swe.remote.faults import LostInTests
from env_servers.swe.suite import Outcome, Suite
from env_servers.swe.task import SweTask

TRUE = Outcome({"t.py::test_a": "passed", "t.py::test_b[x y]": "passed", "t.py::test_flaky": "passed"})
AGAIN = FalseCopy({}, frozenset())
FALSE = FalseCopy({}, frozenset({"t.py::test_a"}))
FLAKY = Outcome({**TRUE.tests, "t.py::test_flaky": "failed"})


@pytest.mark.parametrize(
    ("second_run", "copy", "must_pass", "reason"),
    [
        (TRUE, AGAIN, (), None),
        (FLAKY, AGAIN, (), "tests_failed"),
        (FLAKY, AGAIN, ["t.py::test_a"], None),
        (FLAKY, AGAIN, ["t.py::test_a", "t.py::test_flaky"], "tests_failed"),
        (Outcome({"t.py::test_flaky": "passed"}), AGAIN, ["t.py::test_a"], "tests_failed"),
        (TRUE, FALSE, ["t.py::test_b[x y]"], FORGED),
        (Outcome({**FLAKY.tests, "t.py::test_a": "failed"}), FALSE, ["t.py::test_a"], None),
        (Outcome({}, "time_limit"), FALSE, (), "time_limit"),
    ],
)
def test_only_the_listed_tests_have_to_pass_the_second_run(second_run, copy, must_pass, reason):
    assert contradiction(TRUE, second_run, copy, must_pass) == reason


ROW = {"repo": "a/b", "base_commit": "0" * 40, "test_patch": "diff", "image": "i"}
TASK = SweTask.model_validate({**ROW, "FAIL_TO_PASS": ["t.py::test_a"], "PASS_TO_PASS": ["t.py::test_b[x"]})
FAILS = Outcome({**TRUE.tests, "t.py::test_a": "failed"})


async def falsified(monkeypatch, *outcomes: tuple[FalseCopy, Outcome]) -> str | None:
    """What `judging.falsified` says when these copies of the tests say this, in order."""
    results = iter([outcome for _, outcome in outcomes])

    async def answer(*args):
        return next(results)

    async def laid_out(*args):
        return judging.LaidOut([], [])

    async def read(*args):
        return {}, {}

    monkeypatch.setattr(judging, "_laid_out", laid_out)
    monkeypatch.setattr(judging, "_read_tests", read)
    monkeypatch.setattr(judging, "_tested", answer)
    monkeypatch.setattr(judging, "drawn", lambda *args: [copy for copy, _ in outcomes])
    return await judging.falsified(None, TASK, None, b"patch", TRUE)


async def test_truncated_test_names_are_matched_in_the_second_run(monkeypatch):
    assert await falsified(monkeypatch, (FALSE, FAILS), (AGAIN, FLAKY)) is None
    broken = Outcome({**TRUE.tests, "t.py::test_b[x y]": "failed"})
    assert await falsified(monkeypatch, (FALSE, FAILS), (AGAIN, broken)) == "tests_failed"
    assert await falsified(monkeypatch, (AGAIN, FLAKY), (FALSE, TRUE)) == FORGED


@pytest.mark.parametrize("ended", ["time_limit", "no_report"])
@pytest.mark.parametrize("copy", [FALSE, AGAIN], ids=["falsified", "once more"])
async def test_a_copy_that_does_not_end_in_a_container_is_a_fault(monkeypatch, copy, ended):
    with pytest.raises(LostInTests):
        await falsified(monkeypatch, (copy, Outcome({}, ended)))


def test_a_class_that_could_not_be_collected_is_no_test_and_its_tests_have_to_run():
    text = b"class TestA:\n    def test_a(self, case): ...\n\n\ndef test_b(): ...\n"
    untouched = Outcome({"test_m.py::TestA": "failed", "test_m.py::test_b": "passed"})
    assert _required(untouched, Suite({"test_m.py": text})) == {"test_m.py::TestA::test_a", "test_m.py::test_b"}
    falsifier = Falsifier({"test_m.py": text}, {}, random.Random(3))
    assert "test_m.py::TestA::test_a" in failing_functions(untouched, falsifier)
    assert "test_m.py::test_b" not in failing_functions(untouched, falsifier)
