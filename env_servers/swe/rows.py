"""Rows: what the tests that a row names say of the repository as it is, asked once for each row. A row that its own
tests contradict rewards nothing:

    FAIL_TO_PASS names a test that passes already      any patch would be right
    tests that a row brings pass on its files          any patch would be right
    either names a test that is not there              no patch could be right
    PASS_TO_PASS names a test that does not pass       no patch need be right

task -> check: the files of the named tests run as a whole, beside the first session -> the session is refused, or at
the latest its patch is not judged. `S` is what they run on: a `Source` in a sandbox, or the task in its container."""

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
"""How long the first session of a row waits for the answer before it begins: it holds a start worker meanwhile. Slower
tests tell it before a patch is judged."""
UNTOLD = ("time_limit", "memory", "output_flood")
"""Ends that say nothing about a row: what is to be mended may be the cause."""
SHOWN = 3
Fault = str | None
Judgeable = Callable[[], Awaitable[None]]
"""Awaited before a patch is judged. Raises RowUnfit, SandboxError."""
S = TypeVar("S")


class RowUnfit(SandboxError):
    """The row's tests contradict it: no verdict about a patch means anything."""


class Rows(Generic[S]):
    def __init__(self, run: Callable[[S], Awaitable[Outcome]], wait_s: float = AT_START_S) -> None:
        """`run`: the files of the tests that a row names, on its repository as it is. Raises SandboxError."""
        self.run = run
        self._wait_s = wait_s
        self._known: dict[str, Fault] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    def refuse(self, task: SweTask) -> None:
        """Raises ValueError for a row that is known to be unfit."""
        if fault := self._known.get(_key(task)):
            raise ValueError(fault)

    async def at_start(self, task: SweTask, where: S) -> Judgeable:
        """What to await before a patch is judged, which raises RowUnfit, SandboxError. Raises ValueError for a row that
        is known to be unfit, or is told in time; SandboxError where its tests could not be run."""
        key = _key(task)
        if key not in self._known and key not in self._running:
            check = self._check(key, task, where)
            await asyncio.wait([check], timeout=self._wait_s)
            if check.done():
                check.result()
        self.refuse(task)

        async def judgeable() -> None:
            if key not in self._known:
                await asyncio.shield(self._check(key, task, where))
            if fault := self._known[key]:
                raise RowUnfit(fault)

        return judgeable

    def _check(self, key: str, task: SweTask, where: S) -> asyncio.Task[None]:
        """The one that runs, for all sessions of the row, or a new one. It outlives a session that gives up."""
        if key not in self._running:
            self._running[key] = check = asyncio.create_task(
                self._ask(key, task, where), name=f"tests of {task.repo} as it is"
            )
            # where every session has given up nobody asks why it failed
            check.add_done_callback(lambda check: check.cancelled() or check.exception())
        return self._running[key]

    async def _ask(self, key: str, task: SweTask, where: S) -> None:
        try:
            self._known[key] = fault_of(task, await self.run(where))
        finally:
            del self._running[key]

    async def close(self) -> None:
        """When no check runs any more."""
        for check in (running := [*self._running.values()]):
            check.cancel()
        for check in running:
            with suppress(asyncio.CancelledError, SandboxError):
                await check


def _key(task: SweTask) -> str:
    kept = task.model_dump_json(
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
    return hashlib.sha256(kept.encode()).hexdigest()


def fault_of(task: SweTask, outcome: Outcome) -> Fault:
    """What is wrong with a row whose tests say this of the repository as it is; None where nothing is, or where it
    cannot be told."""
    if outcome.ended in UNTOLD:
        return None
    if task.tests:
        if not outcome.passes(Suite({})):
            return None
        return (
            f"the row of {task.repo}: its tests pass on its files as they are: any patch would do. Put the bug into"
            " `files`, or remove the row."
        )
    row = f"the row {task.instance_id or task.repo} at {task.base_commit}"
    if outcome.ended != "ended":
        why = (
            "its tests give no report on the repository as it is, and PASS_TO_PASS are to pass there."
            " What they import must be installed"
        )
        return f"{row}: {why}, or remove the row." if task.pass_to_pass else None
    for name, tests in (("FAIL_TO_PASS", task.fail_to_pass), ("PASS_TO_PASS", task.pass_to_pass)):
        if lacking := [test for test in tests if not _is_there(test, outcome, may_come=name == "FAIL_TO_PASS")]:
            said = outcome.failures.get(lacking[0].partition("::")[0])
            where = "in the repository with test_patch" + (f" ({said})" if said else "")
            return (
                f"{row}: {name} names {_some(lacking)}, which pytest does not find {where}. Correct or remove the row."
            )
    if passing := [test for test in task.fail_to_pass if outcome.tests.get(test) == "passed"]:
        return (
            f"{row}: FAIL_TO_PASS names {_some(passing)}, which passes in the repository as it is:"
            " any patch would do. Correct or remove the row."
        )
    if failing := [test for test in task.pass_to_pass if outcome.tests.get(test) != "passed"]:
        text = outcome.failures.get(failing[0])
        return (
            f"{row}: PASS_TO_PASS names {_some(failing)}, which does not pass in the repository as it is"
            f"{f' ({text})' if text else ''}. Correct or remove the row."
        )
    return None


def _is_there(test: str, outcome: Outcome, *, may_come: bool) -> bool:
    """Whether pytest found the test. `may_come`: it may need the patch, when its file cannot be imported without, or
    its parameters come from the code."""
    if test in outcome.tests:
        return True
    if not may_come:
        return False
    if any(how == "failed" and _holds(collector, test) for collector, how in outcome.tests.items()):
        return True
    function, bracket, _ = test.partition("[")
    return (
        bool(bracket)
        and any(t.startswith(function + "[") for t in outcome.tests)
        and not any(t.startswith(f"{test} ") for t in outcome.tests)
    )


def _holds(collector: str, test: str) -> bool:
    """Whether what could not be collected, a file, a class or a package, is where the test would be."""
    place = collector.removesuffix("__init__.py").rstrip("/")
    return collector == "collection" or test.startswith((f"{place}::", f"{place}/")) or not place


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(repr, names[:SHOWN])) + more
