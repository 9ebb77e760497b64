"""Backend: where the sessions of a server live and patches are judged. `Local` is a sandbox of this machine;
`remote.backend.Remote` a runtime API.

task -> begin -> Work: bash, edit, ... -> patch -> judge -> Report -> close
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from env_servers.python_tir.warm.notebooks import Notebooks

from .grade import Grader, Report
from .rows import Judgeable, Rows, RowUnfit
from .session import Said, Session
from .sources import Source, Sources
from .task import SweTask


class Work(Protocol):
    """One session's repository. Every method raises SandboxError where what runs it has failed: nothing can be said
    about the model then."""

    async def bash(self, command: str, is_input: bool, seconds: float) -> Said: ...

    async def edit(self, command: str, path: str, arguments: dict[str, Any]) -> Said: ...

    async def patch(self) -> bytes | Said:
        """Said, with the reason in `lost`, where there is none to be had by the model's own doing."""
        ...

    async def judge(self, patch: bytes) -> Report:
        """Against the hidden tests, on a fresh copy."""
        ...

    async def close(self) -> None: ...


class Backend(Protocol):
    async def begin(self, task: SweTask) -> Work:
        """Raises ValueError for a task that cannot be begun; SandboxError, CapacityFull."""
        ...

    @property
    def gauges(self) -> Mapping[str, Callable[[], float]]:
        """For /metrics."""
        ...


class Local:
    """Sandboxes of this machine."""

    def __init__(self, notebooks: Notebooks, sources: Sources, grader: Grader) -> None:
        self.notebooks = notebooks
        self.sources = sources
        self.grader = grader
        self.rows = Rows[Source](lambda source: grader.whole_files(source.tree, source.suite))
        # small and many: no session waits for what its own tests say
        self.brought = Rows[Source](self.rows.run, wait_s=0.0)

    async def begin(self, task: SweTask) -> Work:
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
        """None: bugs of ours were verified when they were made."""
        if task.is_row:
            return await self.rows.at_start(task, source)
        if task.tests:
            return await self.brought.at_start(task, source)
        return None

    @property
    def gauges(self) -> Mapping[str, Callable[[], float]]:
        return {"repositories": self.notebooks.__len__, "repository_bytes": lambda: self.notebooks.held_bytes}


class _LocalWork(Session):
    def __init__(
        self, notebooks: Notebooks, grader: Grader, source: Source, judgeable: Judgeable | None, *, has_bug: bool
    ) -> None:
        """`has_bug` false: a bundled repository as it should be, of which any patch that breaks nothing would do."""
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
                f"the task has the repository {self._source.name} as it should be, and no bug: any patch would do."
                " Give the row its `files`."
            )
        return await self._grader.evaluate(self._source.tree, patch, self._source.suite)
