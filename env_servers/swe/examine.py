"""Find out whether a patched repository passes its hidden tests, although everything that runs them may lie.

    1  the tests on the repository without the patch: which tests there are           (no patched code; remembered)
    2  the tests on the patched repository: the examination ends if one does not pass
    3  falsified copies of the tests (`falsify`), each in its own process: what is falsified must fail. Among them, at a
       random position, the true tests once more

The process that runs the tests imports the code under test, as pytest's idioms require: a module's attribute is
patched, a class is subclassed, output is captured. So the code can rewrite the test runner, look up the value that a
test compares with, return an object that is equal to everything, leave tests out, or write the report itself. All of
this makes falsified tests pass too, or drops them. To pass the true tests and fail the false ones, code must tell them
apart, and for that it must know what is right, which is the task. Code that forges in some runs and is honest in others
must forge in both true runs and in none of the false ones.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections import OrderedDict
from collections.abc import Collection, Sequence

from env_servers.python_tir.warm.sandbox import WarmSandbox

from .busy import TIME_LIMIT, refuse_if_busy
from .falsify import FalseCopy, Falsifier
from .inside_run import functions_of, run_inside
from .suite import Outcome, Suite
from .tree import FILE, Tree, contents

MIN_COPIES = 4
MAX_COPIES = 8
"""Bounds of the number of falsified copies, which is one for each assertion of the longest test."""
SLOW_S = 5.0
"""Seconds of a test run beyond which fewer copies are run."""
SLOW_COPIES = 3
"""Largest number of copies of such tests."""
AT_ONCE = 2
"""Copies that run at once."""
MAX_REMEMBERED = 256
"""Number of repositories whose tests are remembered."""
FORGED = "falsified_tests_passed"
"""`Outcome.ended` of a patch whose code forges results."""


class Examiner:
    """Examines patches in one sandbox; each examination holds at most two places of it at once."""

    def __init__(self, sandbox: WarmSandbox, test_s: float) -> None:
        """`test_s` is the wall clock of one run of the tests."""
        self._sandbox = sandbox
        self._test_s = test_s
        self._without_patch: OrderedDict[bytes, Outcome] = OrderedDict()

    async def patched(self, tree: Tree, files: Tree, suite: Suite) -> Outcome:
        """Examine a patched repository.

        Args:
            tree: The repository without the patch.
            files: The repository with it.
            suite: The tests.

        Returns:
            The outcome of the true tests. `ended` is FORGED if falsified tests have passed as well.

        Raises:
            SandboxError: The sandbox failed.
        """
        start = time.monotonic()
        outcome = await self.once(tree, files, suite)
        seconds = time.monotonic() - start
        if not outcome.passes(suite):
            return outcome
        falsifier = Falsifier(suite.files, contents(tree), random.SystemRandom())
        failing = failing_functions(await self.as_it_is(tree, suite), falsifier)
        if suite.must_pass:
            failing &= set(functions_of(suite.must_pass))
        runs = drawn(falsifier, MAX_COPIES if seconds < SLOW_S else SLOW_COPIES, failing)
        for i in range(0, len(runs), AT_ONCE):
            batch = [self._contradiction(files, suite, outcome, copy) for copy in runs[i : i + AT_ONCE]]
            for reason in await asyncio.gather(*batch):
                if reason is not None:
                    return Outcome(outcome.tests, reason)
        return outcome

    async def once(self, tree: Tree, files: Tree, suite: Suite) -> Outcome:
        """Run the true tests on a patched repository.

        If the row does not name the tests that count, a test that is left out is `missing`, and one that is also
        skipped without the patch does not count.

        Raises:
            SandboxError: The sandbox failed.
        """
        if suite.must_pass:
            return await run_inside(self._sandbox, files, suite, self._test_s)
        untouched = await self.as_it_is(tree, suite)
        outcome = await run_inside(self._sandbox, files, suite, self._test_s)
        reported = {*outcome.tests, *functions_of(list(outcome.tests))}
        missing = sorted(_required(untouched, suite) - reported)
        tests = {**outcome.tests, **dict.fromkeys(missing, "missing")}
        always_skipped = {
            name for name, result in tests.items() if result == "skipped" and untouched.tests.get(name) == "skipped"
        }
        counted = {name: result for name, result in tests.items() if name not in always_skipped}
        return Outcome(counted, outcome.ended, outcome.failures)

    async def _contradiction(self, files: Tree, suite: Suite, outcome: Outcome, copy: FalseCopy) -> str | None:
        """Run a copy of the tests. Return why the outcome of the true ones cannot be believed; None if it can."""
        changed = Suite(copy.files, must_pass=suite.must_pass, restored=suite.restored)
        result = await run_inside(self._sandbox, files, changed, self._test_s)
        if result.ended != "ended":  # once more, because a machine that stalled is not a forgery
            result = await run_inside(self._sandbox, files, changed, self._test_s)
        return contradiction(outcome, result, copy, suite.must_pass)

    async def as_it_is(self, tree: Tree, suite: Suite) -> Outcome:
        """Return the outcome of all tests in the suite's files on the repository without a patch.

        Raises:
            SandboxError: The sandbox failed, or the tests reached their time limit on a busy machine.
        """
        key = _digest(tree, suite)
        if key not in self._without_patch:
            outcome = await run_inside(self._sandbox, tree, suite, self._test_s, whole=True)
            if outcome.ended == TIME_LIMIT:
                await refuse_if_busy(self._sandbox)
            self._without_patch[key] = outcome
        self._without_patch.move_to_end(key)
        while len(self._without_patch) > MAX_REMEMBERED:
            self._without_patch.popitem(last=False)
        return self._without_patch[key]


def _required(untouched: Outcome, suite: Suite) -> set[str]:
    """Return the tests that a run must report, if the row does not name them.

    They are those that pytest finds in the repository without the patch. For a file that cannot be imported there, they
    are the tests in its text.
    """
    text = Falsifier(suite.files, {}, random.SystemRandom())
    required = set()
    uncollected_in = {name.rpartition("::")[0] for name in text.plain_names}
    names = [name for name in untouched.tests if "::" in name and name not in uncollected_in]
    for function, tests in functions_of(names).items():
        # a computed table of parameters may differ with the patch
        required |= set(tests) if function in text.with_literal_tables else {function}
    return required | (text.plain_names if untouched.ended != "ended" else _uncollected(untouched, text))


def _uncollected(untouched: Outcome, falsifier: Falsifier) -> set[str]:
    """Return the tests in the text of the files and classes that pytest could not collect."""
    return {
        name
        for name in falsifier.plain_names
        if any(name[:at] in untouched.tests for at in (i for i in range(len(name)) if name.startswith("::", i)))
    }


def failing_functions(untouched: Outcome, falsifier: Falsifier) -> set[str]:
    """Return the tests that do not pass without the patch, without their parameters.

    Args:
        untouched: Outcome of the tests on the repository without the patch.
        falsifier: Knows the tests of files that could not be imported there.
    """
    if untouched.ended != "ended":
        return set(falsifier.plain_names)
    failed = [name for name, result in untouched.tests.items() if result != "passed" and "::" in name]
    return {*functions_of(failed), *_uncollected(untouched, falsifier)}


def drawn(falsifier: Falsifier, max_copies: int, failing: Collection[str] = ()) -> list[FalseCopy]:
    """Return the copies to run, in their order: falsified ones, and a true one at a random position.

    Args:
        falsifier: Makes the copies.
        max_copies: Largest number of falsified copies.
        failing: The tests that fail without the patch; every other copy falsifies only these.
    """
    if not falsifier.max_changes:
        return []
    count = min(max_copies, max(MIN_COPIES, falsifier.max_changes))
    copies = [falsifier.copy(number, failing) for number in range(count)]
    random.SystemRandom().shuffle(copies)
    copies.insert(random.SystemRandom().randrange(count + 1), falsifier.true_copy)
    return copies


def contradiction(true: Outcome, result: Outcome, copy: FalseCopy, must_pass: Sequence[str] = ()) -> str | None:
    """Return why the outcome of the true tests cannot be believed, as `Report.reason`; None if it can.

    Args:
        true: Outcome of the true tests.
        result: Outcome of a copy of them.
        copy: The copy: falsified tests, or the true ones once more.
        must_pass: The tests that count, which must pass once more; empty: all that have passed.
    """
    if result.ended != "ended":
        return result.ended
    if copy.tests:
        return FORGED if survivors(true, result, copy) else None
    passed = must_pass or [name for name, status in true.tests.items() if status == "passed"]
    return None if all(result.tests.get(name) == "passed" for name in passed) else "tests_failed"


def survivors(true: Outcome, false: Outcome, copy: FalseCopy) -> list[str]:
    """Return the falsified tests that were left out, or that passed as the true ones did.

    One that was skipped does not survive: an expected failure is reported as skipped, and tests may skip others after
    one that failed. A forger wins nothing by a skipped test, which could fail as well.
    """
    true_functions = functions_of(list(true.tests))
    false_functions = functions_of(list(false.tests))
    surviving = []
    for function in copy.tests & set(true_functions):
        if false.tests.get(function.partition("::")[0]) == "failed":  # the whole file failed
            continue
        names = true_functions[function]
        false_names = false_functions.get(function, [])
        if len(false_names) != len(names):
            surviving.append(function)
            continue
        # parameters differ in a falsified copy, so the tests are compared by their order
        surviving += [
            name
            for name, false_name in zip(names, false_names, strict=True)
            if true.tests[name] == "passed" and false.tests[false_name] == "passed"
        ]
    return surviving


def _digest(tree: Tree, suite: Suite) -> bytes:
    digest = hashlib.sha256()
    for part in (tree, {path: (FILE, content) for path, content in suite.files.items()}):
        for path, (mode, content) in sorted(part.items()):
            name = path.encode("utf-8", "surrogateescape")
            digest.update(b"%d %d %d\0" % (mode, len(path), len(content)) + name + content)
        digest.update(b"\0\0")
    return digest.digest()
