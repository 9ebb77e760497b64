"""The one cut: what a checkpoint takes from a running pipeline, and how a resume puts it back.

`save` reads the state and sends the learner its call without awaiting in between, so slots, flights, replay, ledger line and weights
belong together. What was buffered stays buffered; what was rolling is issued again as a new attempt; whatever happened after the cut is
rolled back in the ledger.
"""

from __future__ import annotations

import asyncio
import time

from ..ports import Learner, Rollout
from ..types import BatchItem
from .checkpoint import Checkpoints
from .observer import Observer
from .state import Cut, RunState


class Saver:
    """One checkpoint at a time: host memory holds at most one copy of the learner's state. `tasks` sees a failure in the background."""

    def __init__(
        self, state: RunState, learner: Learner, rollout: Rollout, checkpoints: Checkpoints, observer: Observer, tasks: asyncio.TaskGroup
    ) -> None:
        self.state, self.learner, self.rollout, self.checkpoints, self.observer, self.tasks = state, learner, rollout, checkpoints, observer, tasks
        self.saved: tuple[int, int] | None = None
        """`RunState.progress` at the last cut."""
        self.committing: asyncio.Task | None = None
        """The checkpoint that is being written, or was last."""

    async def save(self, score: float | None = None) -> None:
        """Begin a checkpoint; the learner may step when this returns, `committing` ends when it is safe. `score`: the best evaluation so far.

        Called when no step is under way.
        """
        with self.observer.phase("checkpoint", self.state.version):
            if self.committing:
                await self.committing
            cut = self.state.cut()
            self.saved = self.state.progress
            await self.checkpoints.take(cut.version, self.learner)
        self.committing = self.tasks.create_task(self._commit(cut, score), name=f"commit {cut.version}")

    async def finish(self) -> None:
        """The end of a run: everything up to now is in a checkpoint that is safe."""
        if self.saved != self.state.progress:
            await self.save()
        await self.committing

    async def _commit(self, cut: Cut, score: float | None) -> None:
        """In the background: a failure ends the run, because its task group sees it."""
        start = time.time()
        ledger = self.state.ledger
        groups = await self.rollout.fetch([item.payload for _, item in cut.accepted])
        await asyncio.to_thread(ledger.sync)  # what the checkpoint counts on must not be younger than it
        rows = [(flight, item.meta, group) for (flight, item), group in zip(cut.accepted, groups, strict=True)]
        await self.checkpoints.commit(cut.version, cut.facts, rows, self.learner, score)
        ledger.committed(cut.version, cut.facts["ledger_lines"])
        await asyncio.to_thread(ledger.sync)
        self.observer.spans("ckpt", [(start, time.time())], f"write {cut.version}")

    async def rescue(self) -> str:
        """A checkpoint of a run that stalled, if the learner is idle; says what became of it."""
        if self.observer.now in ("step", "checkpoint"):
            return "The learner is in the middle of a step or a checkpoint; the checkpoint before counts."
        await self.save()
        await self.committing
        return f"Version {self.state.version} was saved."

    async def restore(self) -> None:
        """Back to the last checkpoint's cut, or to the beginning if none was committed."""
        path = self.checkpoints.latest()
        if path is None:
            self.state.ledger.rolled_back(0, [])
            self.observer.rewind(0)
            return
        facts, rows = self.checkpoints.read(path)
        version = await self.learner.load(path / "learner")
        accepted = [(flight, BatchItem(meta, await self.rollout.store(group))) for flight, meta, group in rows]
        self.state.restore(facts, version, accepted)
        for _, item in accepted:
            self.observer.selection.restored(item.meta)
        self.observer.rewind(version)
