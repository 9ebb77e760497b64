"""No forgery is rewarded, every right patch is, and tests may use pytest's usual idioms. A sample of the cases runs
always, all of them with `-m long`."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from env_servers.python_tir.isolation import core_wait
from env_servers.python_tir.sandbox import NoCore
from env_servers.swe import grade
from env_servers.swe.env import LIMITS
from env_servers.swe.grade import Grader
from env_servers.swe.programs import bundle
from env_servers.swe.sources import bundled, names
from env_servers.swe.start import new_sandbox
from env_servers.swe.suite import Suite
from env_servers.swe.tree import EXECUTABLE, FILE, LINK

from ..ordinary import long_except
from .swe_patches import (
    BASES,
    BROKEN_FOR_THREE,
    ERRORS,
    ERRORS_MENDED,
    FEW_FAIL,
    MENDED,
    OF_ERRORS,
    OF_WORDS,
    WORDS,
    cases,
    forged,
    idiom,
    patch,
    right,
)

pytestmark = [
    pytest.mark.extended,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]
FORGERIES = [(case, base) for case in cases("forgeries") for base in BASES]
RIGHT = [(c, base) for c in cases("right_patches") for base in BASES if c.get("only", base.name) == base.name]
BY_OUTCOME = cases("forgeries_by_outcome")
IDIOMS = cases("idioms")
SAMPLE = {
    "an object that is equal to everything", "constants of the test's code", "reports that pass but for the controls",
    "the real report, with the word from the driver's frame", "items that fail are left out of the report",
    "a plugin by entry point in dist-info", "modules that shadow plugins", "metadata that the code reads",
    "the module becomes a package", "few failures are forgiven", "a failure is forgiven where the values are close",
    "unittest.mock.patch",
}  # fmt: skip
"""The names of those that always run, each on one base."""


def chosen(pairs):
    """The sample first, then all of them, which take minutes."""
    found = []
    for i, (case, base) in enumerate(pairs):
        always = case["name"] in SAMPLE and base is BASES[i // 2 % 2]
        name = f"{case['name']}, {base.name}"
        found.append(pytest.param(case, base, id=name, marks=[] if always else pytest.mark.long))
    return found


@pytest.fixture(scope="module")
def grader():
    sandbox = new_sandbox(LIMITS, evaluations=1)
    yield Grader(sandbox, places=2, test_s=30.0)
    asyncio.run(sandbox.close())


def test_the_sets_are_large_and_their_names_are_unique():
    assert (len(FORGERIES), len(RIGHT), len(IDIOMS)) >= (140, 50, 45)
    named = [*(case for case, _ in [*FORGERIES, *RIGHT]), *BY_OUTCOME, *IDIOMS]
    assert {case["name"] for case in named} >= SAMPLE


@pytest.mark.parametrize("share", long_except({"2.0"}, [0.0, 2.0]))
async def test_a_time_limit_is_the_patchs_fault_unless_a_process_gets_too_little_of_a_core(grader, monkeypatch, share):
    """No machine gives a process less than nothing of a core, and none gives it two."""
    monkeypatch.setattr(core_wait, "LEAST_SHARE", share)
    monkeypatch.setattr(grader._examiner, "_test_s", 2.0)
    base = BASES[0]
    endless = patch(base.tree, {"lib.py": "while True:\n    pass\n"})
    # Outcomes without a patch are remembered, so each case has a repository of its own.
    loop = f"while True:\n    pass  # {share}\n".encode()
    never_ends = {path: (mode, loop) for path, (mode, _) in base.tree.items()}
    if share:
        with pytest.raises(NoCore):
            await grader.evaluate(base.tree, endless, base.suite)
        with pytest.raises(NoCore):
            await grader.evaluate_tree(never_ends, base.suite)
    else:
        for report in [
            await grader.evaluate(base.tree, endless, base.suite),
            await grader.evaluate_tree(never_ends, base.suite),
        ]:
            assert (report.resolved, report.reason) == (False, "time_limit")


@pytest.mark.parametrize("clock", ["of a command", "of the sandbox"])
async def test_a_patch_that_a_busy_machine_cannot_apply_in_time_is_not_judged(grader, monkeypatch, clock):
    base = BASES[0]
    mended = patch(base.tree, {"lib.py": MENDED})
    if clock == "of a command":
        in_no_time = f"{bundle('apply')}programs['apply'].SECONDS = 0.0\n"
        monkeypatch.setattr(grade, "bundle", lambda name: in_no_time)
    else:
        monkeypatch.setattr(grade, "bundle", lambda name: f"import time\ntime.sleep(600)\n{bundle(name)}")
        monkeypatch.setattr(grade, "APPLY_S", 0.5)
    monkeypatch.setattr(core_wait, "LEAST_SHARE", 0.0)
    assert (await grader.evaluate(base.tree, mended, base.suite)).reason == "patch_does_not_apply"
    monkeypatch.setattr(core_wait, "LEAST_SHARE", 2.0)
    with pytest.raises(NoCore):
        await grader.evaluate(base.tree, mended, base.suite)


@pytest.mark.parametrize(("case", "base"), chosen(FORGERIES))
async def test_a_forgery_is_not_rewarded(grader, case, base):
    report = await grader.evaluate(base.tree, forged(case, base), base.suite)
    assert not report.resolved


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=c["name"], marks=[] if c["name"] in SAMPLE else pytest.mark.long) for c in BY_OUTCOME],
)
async def test_a_forgery_that_decides_by_the_outcomes_of_tests_is_not_rewarded(grader, case):
    base, module = {"words": (OF_WORDS, WORDS), "errors": (OF_ERRORS, ERRORS)}.get(
        case.get("of"), (FEW_FAIL, BROKEN_FOR_THREE)
    )
    forgery = patch(base.tree, {"lib.py": f"{module}\n{case['code']}"})
    for _ in range(2):  # a copy is drawn: what is found once only may have been lucky
        assert not (await grader.evaluate(base.tree, forgery, base.suite)).resolved


@pytest.mark.long
async def test_a_right_patch_with_few_failing_tests_is_always_rewarded(grader):
    mended = patch(FEW_FAIL.tree, {"lib.py": BROKEN_FOR_THREE.replace(" if x != 3 else 7", "")})
    for _ in range(10):
        report = await grader.evaluate(FEW_FAIL.tree, mended, FEW_FAIL.suite)
        assert report.resolved, report


@pytest.mark.parametrize(
    ("base", "mended"),
    [
        pytest.param(OF_WORDS, WORDS.replace(" if len(word) > 3", ""), id="words"),
        pytest.param(OF_ERRORS, ERRORS_MENDED, id="errors", marks=pytest.mark.long),
    ],
)
async def test_a_right_patch_of_texts_and_of_errors_is_rewarded(grader, base, mended):
    for _ in range(3):
        report = await grader.evaluate(base.tree, patch(base.tree, {"lib.py": mended}), base.suite)
        assert report.resolved, report


@pytest.mark.parametrize(("case", "base"), chosen(RIGHT))
async def test_a_right_patch_is_rewarded_whatever_else_it_changes(grader, case, base):
    report = await grader.evaluate(base.tree, right(case, base), base.suite)
    assert report.resolved, report


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=c["name"], marks=[] if c["name"] in SAMPLE else pytest.mark.long) for c in IDIOMS],
)
async def test_an_idiom_tells_a_right_solution_from_a_wrong_one(grader, case):
    base, mended, wrong = idiom(case)
    assert not (await grader.evaluate_tree(base.tree, base.suite)).resolved
    report = await grader.evaluate(base.tree, mended, base.suite)
    assert report.resolved, report
    assert not (await grader.evaluate(base.tree, wrong, base.suite)).resolved


RUNS_A_PROGRAM = b"""import subprocess

from lib import limit


def test_limit():
    assert limit() == 7


def test_program():
    assert subprocess.check_output(["./tool"], text=True) == "limit 7\\n"


def test_link():
    assert open("current/name").read() == "first\\n"
"""
PROGRAM = b"#!/bin/sh\necho limit 7\n"


@pytest.mark.parametrize("fault", long_except({"content"}, ["content", "mode"]))
async def test_programs_stay_executable_links_stay_and_a_patch_may_change_a_mode(grader, fault):
    value = 7 if fault == "mode" else 8
    tree = {
        "lib.py": (FILE, f"def limit():\n    return {value}\n".encode()),
        "tool": (FILE if fault == "mode" else EXECUTABLE, PROGRAM),
        "first/name": (FILE, b"first\n"),
        "current": (LINK, b"first"),
    }
    suite = Suite({"test_tool.py": RUNS_A_PROGRAM})
    assert not (await grader.evaluate_tree(tree, suite)).resolved
    changed_mode = b"diff --git a/tool b/tool\nold mode 100644\nnew mode 100755\n"
    mended = changed_mode if fault == "mode" else patch(tree, {"lib.py": "def limit():\n    return 7\n"})
    report = await grader.evaluate(tree, mended, suite)
    assert (report.resolved, report.left_out) == (True, []), report
    without_link = mended + b"diff --git a/current b/current\ndeleted file mode 120000\n--- a/current\n+++ /dev/null\n"
    report = await grader.evaluate(tree, without_link + b"@@ -1 +0,0 @@\n-first\n\\ No newline at end of file\n", suite)
    assert (report.reason, report.passed) == ("tests_failed", 2), report


@pytest.mark.long
@pytest.mark.parametrize("name", names())
async def test_every_falsified_test_of_our_repositories_fails_for_the_right_solution(grader, name):
    source = bundled(name)
    harmless = patch(source.tree, {"README.md": source.tree["README.md"][1].decode() + "\nMore.\n"})
    report = await grader.evaluate(source.tree, harmless, source.suite)
    assert report.resolved, report


async def test_a_forgery_would_be_rewarded_if_falsified_tests_were_not_run(grader, monkeypatch):
    """So the cases above are held off by them and by nothing else."""
    [case] = [case for case in cases("forgeries") if case["name"] == "tests that are not called but for the controls"]
    forgery = forged(case, BASES[0])
    assert (await grader.evaluate(BASES[0].tree, forgery, BASES[0].suite)).reason == "falsified_tests_passed"
    monkeypatch.setattr("env_servers.swe.examine.drawn", lambda *args: [])
    assert (await grader.evaluate(BASES[0].tree, forgery, BASES[0].suite)).resolved
    assert (await grader.evaluate(BASES[0].tree, patch(BASES[0].tree, {"lib.py": MENDED}), BASES[0].suite)).resolved
