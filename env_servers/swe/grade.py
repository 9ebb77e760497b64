"""Grade a patch: apply it to a fresh copy, undo what it does to the graders' own files, run hidden tests.

    apply (sandbox)   git apply, else patch --fuzz=5; regular files come back as bytes, nothing else
    restore           the tests' files, and everything that configures pytest or Python, are as the repository had them
    examine           the tests, and falsified copies of them (`examine`)

Everything that a patch can cause is a verdict with a name (`Report.reason`). A sandbox that fails is a SandboxError; so
is a time limit on a machine that is too busy (`busy`).
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from env_servers.python_tir.sandbox import Snippet
from env_servers.python_tir.warm.sandbox import WarmSandbox

from .busy import TIME_LIMIT, refuse_if_busy
from .examine import Examiner
from .programs import bundle
from .suite import Outcome, Suite, keeps_settings
from .tree import EXECUTABLE, FILE, LINK, Tree, contents, executables_of, links_of

MAX_PATCH_BYTES = 512 << 10
"""Bytes of the largest patch. As base64 it fits into what is kept of a session's output (`env.LIMITS`)."""
APPLY_S = 60.0
"""Seconds to apply a patch: two commands of at most 20 s, and reading the files before and after."""


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict about a patch.

    Attributes:
        resolved: The reward.
        reason: resolved, tests_failed, time_limit, memory, output_flood, no_report, falsified_tests_passed,
            container_ended, patch_empty, patch_too_large, patch_does_not_apply or patch_failed.
        passed: Number of tests that count and have passed.
        total: Number of tests that count.
        detail: Further text about the reason.
        left_out: Paths of the patch that did not come into the copy: links, and files of the graders.
        failures: Messages of failed tests.
    """

    resolved: bool
    reason: str
    passed: int = 0
    total: int = 0
    detail: str = ""
    left_out: list[str] = field(default_factory=list)
    failures: Mapping[str, str] = field(default_factory=dict)

    def signals(self) -> dict[str, Any]:
        """Return the verdict as signals of a step."""
        return {
            "resolved": self.resolved,
            "evaluation": self.reason,
            "tests_passed": self.passed,
            "tests_total": self.total,
            "patch_left_out": self.left_out[:20],
            "detail": self.detail[:300],
        }


def refusal_of(patch: bytes) -> Report | None:
    """Return the verdict about a patch that is not even applied: an empty or a large one; None for any other."""
    if not patch.strip():
        return Report(False, "patch_empty")
    if len(patch) > MAX_PATCH_BYTES:
        return Report(False, "patch_too_large", detail=f"{len(patch)} bytes; at most {MAX_PATCH_BYTES}")
    return None


class Grader:
    """Grades patches in one sandbox, only so many at once that each finds its two places."""

    def __init__(self, sandbox: WarmSandbox, *, places: int, test_s: float) -> None:
        """Create the grader.

        Args:
            sandbox: Runs the tests.
            places: Places of the sandbox.
            test_s: Wall clock of one run of hidden tests.
        """
        self._sandbox = sandbox
        self._examiner = Examiner(sandbox, test_s)
        self._free = asyncio.Semaphore(max(1, places // 2))

    async def evaluate(self, tree: Tree, patch: bytes, suite: Suite, *, is_ours: bool = False) -> Report:
        """Judge a patch.

        Args:
            tree: The repository.
            patch: The patch as git writes it.
            suite: The hidden tests.
            is_ours: True for a gold patch, which nobody has a reason to forge: its tests are run once.

        Raises:
            SandboxError: The sandbox failed, or a time limit was reached on a busy machine.
        """
        if (refusal := refusal_of(patch)) is not None:
            return refusal
        async with self._free:
            applied = await self._apply(tree, patch)
            if applied["error"]:
                return Report(False, "patch_does_not_apply", detail=applied["error"])
            files, left_out = restored(tree, applied, suite)
            examine = self._examiner.once if is_ours else self._examiner.patched
            outcome = await examine(tree, files, suite)
            if outcome.ended == TIME_LIMIT:
                await refuse_if_busy(self._sandbox)
            return report_of(outcome, suite, left_out)

    async def evaluate_tree(self, tree: Tree, suite: Suite) -> Report:
        """Return the verdict about a repository without a patch. Raises SandboxError."""
        return report_of(await self.whole_files(tree, suite), suite, [])

    async def whole_files(self, tree: Tree, suite: Suite) -> Outcome:
        """Return the outcome of all tests in the suite's files on a repository without a patch. Raises SandboxError."""
        async with self._free:
            return await self._examiner.as_it_is(tree, suite)

    async def applied(self, tree: Tree, patch: bytes) -> dict[str, Any]:
        """Return the result of `inside/apply`, with `error` if the patch does not apply. Raises SandboxError."""
        async with self._free:
            return await self._apply(tree, patch)

    async def _apply(self, tree: Tree, patch: bytes) -> dict[str, Any]:
        files = {f"repo/{path}": content for path, content in contents(tree).items()}
        code = bundle("apply") + f"programs['apply'].main({executables_of(tree)!r}, {links_of(tree)!r})\n"
        limits = self._sandbox.limits.for_call(APPLY_S, None, None)
        execution = await self._sandbox.execute(
            Snippet(code, files={**files, "patch": patch}, fetch=["result"]), limits
        )
        try:
            result: dict[str, Any] = json.loads(execution.files["result"])
        except (KeyError, ValueError):  # for example with a patch of thousands of files
            reason = execution.killed or execution.stderr[-300:].decode("utf-8", "replace")
            result = {
                "error": f"it could not be applied within the limits: {reason}",
                "is_late": execution.killed == TIME_LIMIT,
            }
        if result["is_late"]:
            await refuse_if_busy(self._sandbox)
        return result


def report_of(outcome: Outcome, suite: Suite, left_out: list[str]) -> Report:
    """Return the verdict of a test run."""
    resolved = outcome.passes(suite)
    reason = "tests_failed" if outcome.ended == "ended" else outcome.ended
    if resolved:
        reason = "resolved"
    counted = suite.must_pass or list(outcome.tests)
    passed = sum(outcome.tests.get(name) == "passed" for name in counted)
    return Report(resolved, reason, passed, len(counted), left_out=left_out, failures=outcome.failures)


def restored(tree: Tree, applied: Mapping[str, Any], suite: Suite) -> tuple[dict[str, tuple[int, bytes]], list[str]]:
    """Return the files that are tested, and the paths of the patch that are not among them.

    Args:
        tree: The repository without the patch.
        applied: Result of `inside/apply`.
        suite: The hidden tests, whose files the patch may not change.
    """
    files = dict(tree)
    left_out = list(applied["left_out"])
    executables = {*applied["executables"]}
    changed: dict[str, bytes | None] = {path: base64.b64decode(data) for path, data in applied["files"].items()}
    changed |= dict.fromkeys(applied["gone"])
    for path, content in changed.items():
        if suite.protects(path) and not (
            path not in suite.files and keeps_settings(path, tree.get(path, (0, None))[1], content)
        ):
            left_out.append(path)
        elif content is None:
            files.pop(path, None)
        else:
            files[path] = FILE, content
    for path, (mode, content) in files.items():
        if mode != LINK and not suite.protects(path):
            files[path] = EXECUTABLE if path in executables else FILE, content
    hindering = _hindering({*files, *suite.files}, suite)
    return {path: file for path, file in files.items() if path not in hindering}, sorted({*left_out, *hindering})


def _hindering(paths: set[str], suite: Suite) -> set[str]:
    """Return paths below a protected file, or in the place of a protected file's directory: both cannot exist."""
    hindering = set()
    for path in paths:
        for at in (i for i, letter in enumerate(path) if letter == "/"):
            if (above := path[:at]) in paths:
                hindering.add(above if suite.protects(path) else path)
    return hindering
