"""Where the sessions of a server live and patches are judged: a sandbox of this machine (`Local`), or a runtime API
(`remote.backend.Remote`).

task -> begin -> Work: bash, edit, ... -> patch -> judge -> Report -> close
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from env_servers.python_tir.warm.notebooks import Notebooks

from .grade import Grader, Report
from .rows import Judgeable, Rows, RowUnfit
from .session import Session, ToolResult
from .sources import Source, Sources
from .task import SweTask


class Work(Protocol):
    """One session's repository. Every method raises SandboxError if its sandbox or container has failed: nothing is
    then known about the model."""

    async def bash(self, command: str, is_input: bool, seconds: float) -> ToolResult:
        """Run a command, or send input to the running one."""
        ...

    async def edit(self, command: str, path: str, arguments: dict[str, Any]) -> ToolResult:
        """Run a command of the editor."""
        ...

    async def patch(self) -> bytes | ToolResult:
        """Return the session's patch.

        If the model itself has made a patch impossible, return a ToolResult with the reason in `lost`.
        """
        ...

    async def judge(self, patch: bytes) -> Report:
        """Judge a patch by the hidden tests, on a fresh copy of the repository."""
        ...

    async def close(self) -> None:
        """End the session."""
        ...


class Backend(Protocol):
    """Starts sessions."""

    async def begin(self, task: SweTask) -> Work:
        """Start the session of a task. Raises ValueError for a task that cannot be started; SandboxError,
        CapacityFull."""
        ...

    @property
    def gauges(self) -> Mapping[str, Callable[[], float]]:
        """Functions that /metrics reads, by metric name."""
        ...


class Local:
    """Sessions in sandboxes of this machine."""

    def __init__(self, notebooks: Notebooks, sources: Sources, grader: Grader) -> None:
        self.notebooks = notebooks
        self.sources = sources
        self.grader = grader
        self.rows = Rows[Source](lambda source: grader.whole_files(source.tree, source.suite))
        # These repositories are small and many, so no session waits until its row has been checked.
        self.own_repository_rows = Rows[Source](self.rows.run, wait_s=0.0)

    async def begin(self, task: SweTask) -> Work:
        """Start the session of a task, as in `Backend`."""
        source = await self.sources.of(task)
        judgeable = await self._judgeable(task, source)
        has_bug = bool(task.is_row or task.files)
        work = _LocalWork(self.notebooks, self.grader, source, judgeable, has_bug=has_bug)
        try:
            await work.open()
        except BaseException:
            await work.close()
            raise
        return work

    async def _judgeable(self, task: SweTask, source: Source) -> Judgeable | None:
        """Return what must be awaited before a patch is judged; None for our own bugs, which were verified when they
        were made."""
        if task.is_row:
            return await self.rows.at_start(task, source)
        if task.tests:
            return await self.own_repository_rows.at_start(task, source)
        return None

    @property
    def gauges(self) -> Mapping[str, Callable[[], float]]:
        return {"repositories": self.notebooks.__len__, "repository_bytes": lambda: self.notebooks.held_bytes}


class _LocalWork(Session):
    """A session in a sandbox of this machine."""

    def __init__(
        self, notebooks: Notebooks, grader: Grader, source: Source, judgeable: Judgeable | None, *, has_bug: bool
    ) -> None:
        """Create the session.

        Args:
            notebooks: The server's interpreters.
            grader: Judges patches.
            source: The repository and its hidden tests.
            judgeable: Awaited before a patch is judged.
            has_bug: False for a bundled repository without a bug, in which any patch that breaks nothing would pass.
        """
        super().__init__(notebooks, f"/tmp/{source.name}", source.tree)
        self._grader = grader
        self._source = source
        self._judgeable = judgeable
        self._has_bug = has_bug

    async def judge(self, patch: bytes) -> Report:
        if self._judgeable is not None:
            await self._judgeable()
        if patch.strip() and not self._has_bug:
            raise RowUnfit(
                f"the task has the repository {self._source.name} without a bug: any patch would pass."
                " Give the row its `files`."
            )
        return await self._grader.evaluate(self._source.tree, patch, self._source.suite)
