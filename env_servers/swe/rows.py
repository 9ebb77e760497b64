"""Check each row once: what the tests that it names say of the repository as it is. A row that its own tests contradict
rewards nothing:

    FAIL_TO_PASS names a test that passes already      any patch would be right
    tests that a row brings pass on its files          any patch would be right
    either names a test that does not exist            no patch could be right
    PASS_TO_PASS names a test that does not pass       no patch need be right

The whole files of the named tests run beside the first session of the row. A faulty row's sessions are refused, or at
the latest its patches are not judged. `S` is what the tests run on: a `Source` in a sandbox, or the task in its
container.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from env_servers.python_tir.sandbox import SandboxError

from .suite import Outcome, Suite
from .task import SweTask

AT_START_S = 5.0
"""Seconds for which the first session of a row waits for the check before it begins; it holds a start worker meanwhile.
Slower checks are awaited before a patch is judged."""
INCONCLUSIVE = ("time_limit", "memory", "output_flood")
"""Ends of a run that say nothing about a row: the bug itself may be the cause."""
MAX_NAMES = 3
"""Names of tests that a message quotes."""
Fault = str | None
Judgeable = Callable[[], Awaitable[None]]
"""Awaited before a patch is judged. Raises RowUnfit, SandboxError."""
S = TypeVar("S")


class RowUnfit(SandboxError):
    """Raised when the tests of a row contradict it, so that no verdict about a patch means anything."""


class Rows(Generic[S]):
    """The checks of a server's rows."""

    def __init__(self, run: Callable[[S], Awaitable[Outcome]], wait_s: float = AT_START_S) -> None:
        """Create the collection.

        Args:
            run: Runs the files of the tests that a row names on its repository as it is. Raises SandboxError.
            wait_s: Seconds for which the first session of a row waits for the check.
        """
        self.run = run
        self._wait_s = wait_s
        self._faults: dict[str, Fault] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    def refuse(self, task: SweTask) -> None:
        """Raise ValueError for a row that is known to be unfit."""
        if fault := self._faults.get(_key(task)):
            raise ValueError(fault)

    async def at_start(self, task: SweTask, where: S) -> Judgeable:
        """Check a row when a session of it starts.

        Returns:
            What must be awaited before a patch is judged. It raises RowUnfit and SandboxError.

        Raises:
            ValueError: The row is known to be unfit, or is found to be in time.
            SandboxError: Its tests could not be run.
        """
        key = _key(task)
        if key not in self._faults and key not in self._running:
            check = self._check(key, task, where)
            await asyncio.wait([check], timeout=self._wait_s)
            if check.done():
                check.result()
        self.refuse(task)

        async def judgeable() -> None:
            if key not in self._faults:
                await asyncio.shield(self._check(key, task, where))
            if fault := self._faults[key]:
                raise RowUnfit(fault)

        return judgeable

    def _check(self, key: str, task: SweTask, where: S) -> asyncio.Task[None]:
        """Return the running check of a row, which all of its sessions share, or a new one. It outlives a session that
        ends."""
        if key not in self._running:
            self._running[key] = check = asyncio.create_task(
                self._ask(key, task, where), name=f"tests of {task.repo} as it is"
            )
            # retrieves the exception: if every session has ended, nobody else does
            check.add_done_callback(lambda check: check.cancelled() or check.exception())
        return self._running[key]

    async def _ask(self, key: str, task: SweTask, where: S) -> None:
        try:
            self._faults[key] = fault_of(task, await self.run(where))
        finally:
            del self._running[key]

    async def close(self) -> None:
        """Cancel all checks and wait for their end."""
        for check in (running := [*self._running.values()]):
            check.cancel()
        for check in running:
            with suppress(asyncio.CancelledError, SandboxError):
                await check


def _key(task: SweTask) -> str:
    """Return a key of everything that the check of a row depends on."""
    fields = task.model_dump_json(
        include={
            "repo",
            "base_commit",
            "instance_id",
            "image",
            "test_patch",
            "fail_to_pass",
            "pass_to_pass",
            "files",
            "tests",
        }
    )
    return hashlib.sha256(fields.encode()).hexdigest()


def fault_of(task: SweTask, outcome: Outcome) -> Fault:
    """Return what is wrong with a row, given the outcome of its tests on the repository as it is; None if nothing is,
    or if that cannot be known."""
    if outcome.ended in INCONCLUSIVE:
        return None
    if task.tests:
        if not outcome.passes(Suite({})):
            return None
        return (
            f"the row of {task.repo}: its tests pass on its files as they are: any patch would pass. Put the bug into"
            " `files`, or remove the row."
        )
    row = f"the row {task.instance_id or task.repo} at {task.base_commit}"
    if outcome.ended != "ended":
        fact = (
            "its tests give no report on the repository as it is, and PASS_TO_PASS are to pass there."
            " What they import must be installed"
        )
        return f"{row}: {fact}, or remove the row." if task.pass_to_pass else None
    for name, tests in (("FAIL_TO_PASS", task.fail_to_pass), ("PASS_TO_PASS", task.pass_to_pass)):
        if lacking := [test for test in tests if not _is_there(test, outcome, may_come=name == "FAIL_TO_PASS")]:
            message = outcome.failures.get(lacking[0].partition("::")[0])
            where = "in the repository with test_patch" + (f" ({message})" if message else "")
            return (
                f"{row}: {name} names {_listing(lacking)}, which pytest does not find {where}."
                " Correct or remove the row."
            )
    if passing := [test for test in task.fail_to_pass if outcome.tests.get(test) == "passed"]:
        return (
            f"{row}: FAIL_TO_PASS names {_listing(passing)}, which passes in the repository as it is:"
            " any patch would pass. Correct or remove the row."
        )
    if failing := [test for test in task.pass_to_pass if outcome.tests.get(test) != "passed"]:
        text = outcome.failures.get(failing[0])
        return (
            f"{row}: PASS_TO_PASS names {_listing(failing)}, which does not pass in the repository as it is"
            f"{f' ({text})' if text else ''}. Correct or remove the row."
        )
    return None


def _is_there(test: str, outcome: Outcome, *, may_come: bool) -> bool:
    """Return True if pytest found a test.

    Args:
        test: Its name.
        outcome: What pytest reported.
        may_come: Whether the test may need the patch: its file cannot be imported without it, or its parameters come
            from the code.
    """
    if test in outcome.tests:
        return True
    if not may_come:
        return False
    if any(status == "failed" and _holds(collector, test) for collector, status in outcome.tests.items()):
        return True
    function, bracket, _ = test.partition("[")
    return (
        bool(bracket)
        and any(name.startswith(function + "[") for name in outcome.tests)
        and not any(name.startswith(f"{test} ") for name in outcome.tests)
    )


def _holds(collector: str, test: str) -> bool:
    """Return True if a file, class or package that could not be collected is where the test would be."""
    place = collector.removesuffix("__init__.py").rstrip("/")
    return collector == "collection" or test.startswith((f"{place}::", f"{place}/")) or not place


def _listing(names: list[str]) -> str:
    """Return the first names as text, and how many more there are."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(map(repr, names[:MAX_NAMES])) + more
