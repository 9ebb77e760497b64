"""The one cut: what a checkpoint takes from a running pipeline, and how a resume puts it back.

`save` reads the state and sends the learner its call without awaiting in between, so slots, flights, replay, ledger
line and weights belong together. What was buffered or in hand stays buffered; what was rolling is issued again as a new
attempt; whatever happened after the cut is rolled back in the ledger.

A disk that refuses (full, gone) costs that checkpoint: it is said, the one before stays, training goes on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..config import Config
from ..errors import CheckpointDamaged
from ..ports import Learner, Rollout
from ..types import BatchItem
from .checkpoints.checkpoint import Checkpoints
from .observer import Observer
from .state import Cut, RunState

log = logging.getLogger(__name__)


class Saver:
    """One checkpoint at a time: host memory holds at most one copy of the learner's state. `tasks` sees what fails in
    the background.

    With ckpt.disable_ds a save is a no-op, and there is nothing to resume from. complete: adds to an exported model
    what the learner does not know of (ckpt.save_hf).
    """

    def __init__(
        self,
        cfg: Config,
        state: RunState,
        learner: Learner,
        rollout: Rollout,
        checkpoints: Checkpoints,
        observer: Observer,
        tasks: asyncio.TaskGroup,
        complete: Callable[[Path], None],
    ) -> None:
        self.writes, self.complete = not cfg.ckpt.disable_ds, complete
        self.state, self.learner, self.rollout = state, learner, rollout
        self.checkpoints, self.observer, self.tasks = checkpoints, observer, tasks
        self.ready = False
        """The state is that of the run: a new one, or restored. Before, a checkpoint would hold nothing."""
        self.copying = False
        """The learner's ranks copy their state."""
        self._one = asyncio.Lock()
        """Held until a checkpoint is on its way: the trainer, a stop and the watchdog's rescue may ask for the same
        one, and would write the same files."""
        self.best = checkpoints.best()[1]
        """Score of the best checkpoint."""
        self.saved: tuple[int, int] | None = None
        """`RunState.progress` at the last cut that is committed, or is being written."""
        self.committing: asyncio.Task[Any] | None = None
        """The checkpoint that is being written, or was last."""

    async def save(self, score: float | None = None) -> None:
        """Begin a checkpoint; the learner may step when this returns, `committing` ends when it is safe. `score`: it is
        the best so far.

        Called when no step is under way.
        """
        if not self.writes:
            return
        with self.observer.phase("checkpoint", self.state.version):
            async with self._one:
                await self.settled()
                if score is not None or self.saved != self.state.progress:  # else a rescue has taken it meanwhile
                    await self._take(score)

    async def _take(self, score: float | None) -> None:
        """By the holder of the lock, when nothing is being written."""
        cut, self.saved = self.state.cut(), self.state.progress
        self.copying = True
        try:
            await self.checkpoints.take(cut.version, self.learner)
        except OSError as e:
            self._refused(cut, e)
            return
        finally:
            self.copying = False
            self.state.signal.notify()
        self.committing = self.tasks.create_task(self._commit(cut, score), name=f"commit {cut.version}")

    async def export(self) -> None:
        """The weights as a model beside the checkpoints (ckpt.save_hf). A disk that refuses costs this one."""
        directory = self.checkpoints.export_of(self.state.version)
        with self.observer.phase("checkpoint", self.state.version):
            try:
                directory.parent.mkdir(parents=True, exist_ok=True)
                await self.learner.export(directory)
                await asyncio.to_thread(self.complete, directory)
            except OSError as e:
                log.error(
                    "The model of version %d could not be exported to %s: %s. Training goes on.",
                    self.state.version,
                    directory,
                    e,
                )

    async def settled(self) -> None:
        """Wait until no checkpoint is being written."""
        if self.committing:
            await asyncio.wait({self.committing})

    async def finish(self) -> None:
        """Everything up to now is in a checkpoint that is safe, or it was said why not. What has begun to step
        meanwhile is in none."""
        if not self.writes:
            return
        with self.observer.phase("checkpoint", self.state.version):
            async with self._one:
                await self.settled()
                if self.saved != self.state.progress and not self.state.stepping:
                    await self._take(None)
            await self.settled()

    def give_up(self) -> None:
        """What is being written is not waited for any longer; it does not become a checkpoint."""
        if self.committing:
            self.committing.cancel()

    async def _commit(self, cut: Cut, score: float | None) -> None:
        """In the background. What fails here ends the run, as its task group sees it; a disk that refuses does not."""
        start, before = time.time(), self.best
        ledger = self.state.ledger
        if score is not None:
            self.best = score
        try:
            groups = await self.rollout.fetch([item.payload for _, item in cut.accepted])
            await asyncio.to_thread(ledger.sync)  # what the checkpoint counts on must not be younger than it
            rows = [(flight, item.meta, group) for (flight, item), group in zip(cut.accepted, groups, strict=True)]
            await self.checkpoints.commit(cut.version, cut.facts, rows, self.learner, score)
        except OSError as e:
            self.best = before
            self._refused(cut, e)
            return
        ledger.committed(cut.version, cut.facts["ledger_lines"])
        # this line is for the audit: the checkpoint is whole, and stands on what was synced before
        await asyncio.to_thread(ledger.try_to_sync)
        self.observer.spans("ckpt", [(start, time.time())], f"write {cut.version}")

    def _refused(self, cut: Cut, error: OSError) -> None:
        """CheckpointFailed says itself how much room it needs; any other is of the ledger's disk."""
        self.saved = None
        self.checkpoints.discard(cut.version)
        said = str(error).rstrip(".")
        log.error(
            "The checkpoint of version %d could not be written: %s. %s Training goes on.",
            cut.version,
            said,
            self.last_committed(),
        )

    def last_committed(self) -> str:
        """The checkpoint that a resume would begin with, for a person."""
        try:
            path = self.checkpoints.latest()
        except CheckpointDamaged as e:  # this is told beside something else, which it must not replace
            return str(e)
        return (
            f"The last checkpoint is {path}; --resume goes on from it."
            if path
            else "There is no checkpoint: --resume would begin anew."
        )

    async def rescue(self) -> str:
        """A checkpoint of a run that stalled, if the learner is idle; says what became of it."""
        if not self.writes:
            return "No checkpoint is written, as ckpt.disable_ds says."
        if self.state.stepping or self.copying or not self.ready:
            return "The learner is in the middle of a step or a checkpoint; the checkpoint before counts."
        await self.finish()
        return (
            f"Version {self.saved[0]} was saved."
            if self.saved
            else "No checkpoint could be written, see the log; the one before counts."
        )

    async def restore(self) -> None:
        """Back to the last checkpoint's cut, or to the beginning if none was committed."""
        path = self.checkpoints.latest()
        if path is None:
            self.state.begin_anew()
            self.observer.rewind(0)
            return
        facts, rows = await asyncio.to_thread(self.checkpoints.read, path)
        version = await self.learner.load(path / "learner")
        accepted = [(flight, BatchItem(meta, await self.rollout.store(group))) for flight, meta, group in rows]
        self.state.restore(facts, version, accepted)
        self.saved = self.state.progress
        for _, item in accepted:
            self.observer.selection.restored(item.meta)
        self.observer.rewind(version)
