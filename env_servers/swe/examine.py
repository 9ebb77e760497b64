"""Examine: whether a patched repository passes its hidden tests, when everything that runs them may be lying.

    1  the tests as the repository is without the patch: which there are                   (no patched code; kept)
    2  the tests on the patched repository: one that does not pass ends it
    3  falsified copies of the tests (`falsify`), each in a process of its own: what is falsified has to fail; among
       them, at a place that is drawn, the true ones again

The code under test is imported by the process that runs its tests, as pytest's idioms want it: a module's attribute
is patched, a class is subclassed, output is captured. So it can rewrite the test runner, look up what a test compares
with, answer with an object that is equal to everything, leave tests out, or write the report itself. All of it makes
falsified tests pass too, or drops them. To pass the true ones and fail the false ones code has to tell them apart, and
for that it has to know what is right, which is the task. Code that forges in some runs and is honest in the others has
to forge in both true runs and in none of the false ones.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

from env_servers.python_tir.warm.sandbox import WarmSandbox

from .falsify import FalseCopy, Falsifier
from .inside_run import functions_of, run_inside
from .suite import Outcome, Suite
from .tree import LINK, Tree

MIN_COPIES = 4
MAX_COPIES = 8
"""Falsified copies of the tests that are run: one for each assertion of the longest test, within these bounds."""
SLOW_S = 5.0
SLOW_COPIES = 3
"""The most copies of tests that take longer than SLOW_S."""
AT_ONCE = 2
KEPT = 256
"""Repositories whose tests are remembered."""
FORGED = "falsified_tests_passed"


class Examiner:
    """Examinations in one sandbox; each holds at most two places of it at once."""

    def __init__(self, sandbox: WarmSandbox, test_s: float) -> None:
        """`test_s` is the wall clock of one run of the tests."""
        self._sandbox = sandbox
        self._test_s = test_s
        self._known: OrderedDict[bytes, Outcome] = OrderedDict()

    async def plain(self, tree: Tree, suite: Suite, *, whole: bool = False) -> Outcome:
        """Run the tests on a repository that nobody has patched. Raises SandboxError."""
        return await run_inside(self._sandbox, contents(tree), suite, self._test_s, whole=whole)

    async def patched(self, tree: Tree, files: Mapping[str, bytes], suite: Suite) -> Outcome:
        """Examine a patched repository.

        Args:
            tree: The repository without the patch.
            files: The repository with it.
            suite: The tests.

        Returns:
            The outcome of the true tests. `ended` is FORGED where falsified ones have passed as well.

        Raises:
            SandboxError: The sandbox failed.
        """
        began = time.monotonic()
        outcome = await self.once(tree, files, suite)
        took = time.monotonic() - began
        if not outcome.passes(suite):
            return outcome
        falsifier = Falsifier(suite.files, contents(tree), random.SystemRandom())
        failing = failing_functions(await self.as_it_is(tree, suite), falsifier)
        if suite.must_pass:
            failing &= set(functions_of(suite.must_pass))
        runs = drawn(falsifier, MAX_COPIES if took < SLOW_S else SLOW_COPIES, failing)
        for i in range(0, len(runs), AT_ONCE):
            some = [self._contradiction(files, suite, outcome, copy) for copy in runs[i : i + AT_ONCE]]
            for why in await asyncio.gather(*some):
                if why is not None:
                    return Outcome(outcome.tests, why)
        return outcome

    async def once(self, tree: Tree, files: Mapping[str, bytes], suite: Suite) -> Outcome:
        """Run the true tests on a patched repository.

        Where the row does not name the tests that count, one that is left out is `missing`, and one that is skipped
        without the patch as well counts for nothing.

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
            name for name, how in tests.items() if how == "skipped" and untouched.tests.get(name) == "skipped"
        }
        counted = {name: how for name, how in tests.items() if name not in always_skipped}
        return Outcome(counted, outcome.ended, outcome.failures)

    async def _contradiction(
        self, files: Mapping[str, bytes], suite: Suite, outcome: Outcome, copy: FalseCopy
    ) -> str | None:
        """Run a copy of the tests. Return why the outcome of the true ones is not to be believed; None where it is."""
        changed = Suite(copy.files, must_pass=suite.must_pass, restored=suite.restored)
        again = await run_inside(self._sandbox, files, changed, self._test_s)
        if again.ended != "ended":  # once more: a machine that stalled is no forgery
            again = await run_inside(self._sandbox, files, changed, self._test_s)
        return contradiction(outcome, again, copy, suite.must_pass)

    async def as_it_is(self, tree: Tree, suite: Suite) -> Outcome:
        """Return what all tests of the suite's files say of the repository without a patch. Raises SandboxError."""
        key = _digest(tree, suite)
        if key not in self._known:
            self._known[key] = await self.plain(tree, suite, whole=True)
        self._known.move_to_end(key)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return self._known[key]


def _required(untouched: Outcome, suite: Suite) -> set[str]:
    """Return the tests that a run has to report, where the row does not name them.

    They are those that pytest finds in the repository without the patch. A file that cannot be imported there has those
    that its text shows.
    """
    text = Falsifier(suite.files, {}, random.SystemRandom())
    required = set()
    for function, tests in functions_of([name for name in untouched.tests if "::" in name]).items():
        # what a table that is computed gives may be another one with the patch
        required |= set(tests) if function in text.with_literal_tables else {function}
    broken = {name for name in untouched.tests if "::" not in name}
    if untouched.ended != "ended":
        broken = set(suite.files)
    return required | {name for name in text.plain_names if name.partition("::")[0] in broken}


def failing_functions(untouched: Outcome, falsifier: Falsifier) -> set[str]:
    """Return the tests that do not pass without the patch, without their parameters.

    Args:
        untouched: What the tests say of the repository without the patch.
        falsifier: Knows the tests of files that could not be imported there.
    """
    if untouched.ended != "ended":
        return set(falsifier.plain_names)
    failed = {name for name, how in untouched.tests.items() if how != "passed"}
    broken_files = {name for name in failed if "::" not in name}
    in_them = {name for name in falsifier.plain_names if name.partition("::")[0] in broken_files}
    return {*functions_of(sorted(failed - broken_files)), *in_them}


def drawn(falsifier: Falsifier, most: int, failing: Collection[str] = ()) -> list[FalseCopy]:
    """Return the copies that are run, in their order: falsified ones, `most` of them at most, and a true one.

    Args:
        falsifier: Makes the copies.
        most: The most falsified copies.
        failing: The tests that fail without the patch; every other copy falsifies only such.
    """
    if not falsifier.most_changes:
        return []
    count = min(most, max(MIN_COPIES, falsifier.most_changes))
    copies = [falsifier.copy(number, failing) for number in range(count)]
    random.SystemRandom().shuffle(copies)
    copies.insert(random.SystemRandom().randrange(count + 1), falsifier.true_copy)
    return copies


def contradiction(true: Outcome, again: Outcome, copy: FalseCopy, must_pass: Sequence[str] = ()) -> str | None:
    """Return why what the true tests said is not to be believed, as `Report.why`, when a copy of them says this.

    Args:
        true: What the true tests said.
        again: What the copy said.
        copy: Falsified tests, or the true ones once more.
        must_pass: The tests that count, which have to pass once more; empty: all that have passed.
    """
    if again.ended != "ended":
        return again.ended
    if copy.tests:
        return FORGED if survivors(true, again, copy) else None
    passed = must_pass or [name for name, how in true.tests.items() if how == "passed"]
    return None if all(again.tests.get(name) == "passed" for name in passed) else "tests_failed"


def survivors(true: Outcome, false: Outcome, copy: FalseCopy) -> list[str]:
    """Return the falsified tests that have not failed though the true ones passed, or were left out."""
    ours = functions_of(list(true.tests))
    theirs = functions_of(list(false.tests))
    found = []
    for function in copy.tests & set(ours):
        if false.tests.get(function.partition("::")[0]) == "failed":  # the whole file
            continue
        now = theirs.get(function, [])
        if len(now) != len(ours[function]):
            found.append(function)
            continue
        pairs = zip(ours[function], now, strict=True)
        found += [name for name, changed in pairs if true.tests[name] == "passed" and false.tests[changed] != "failed"]
    return found


def contents(tree: Tree) -> dict[str, bytes]:
    """Return the regular files of a tree."""
    return {path: content for path, (mode, content) in tree.items() if mode != LINK}


def _digest(tree: Tree, suite: Suite) -> bytes:
    digest = hashlib.sha256()
    for part in (contents(tree), suite.files):
        for path, content in sorted(part.items()):
            digest.update(b"%d %d\0" % (len(path), len(content)) + path.encode("utf-8", "surrogateescape") + content)
        digest.update(b"\0\0")
    return digest.digest()
