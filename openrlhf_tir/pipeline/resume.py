"""The one cut: what a checkpoint takes from a running pipeline, and how a resume puts it back.

`save` reads the state and sends the learner its call without awaiting in between, so slots, flights, replay, ledger
line and weights belong together. What was buffered or in hand stays buffered; what was rolling is issued again as a new
attempt; whatever happened after the cut is rolled back in the ledger.

A version that is being evaluated is copied at once, and written when the figures say whether it is the best, or where a
checkpoint was due in any case.

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
from .evaluation import Evaluation, Evaluator
from .observer import Observer
from .state import Cut, RunState

log = logging.getLogger(__name__)
OWED = "evaluation_owed"
"""Fact of a checkpoint: its version's evaluation was due, and is to be made after the resume's first push."""


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
        evaluator: Evaluator,
        tasks: asyncio.TaskGroup,
        complete: Callable[[Path], None],
    ) -> None:
        self.writes, self.every, self.exports = not cfg.ckpt.disable_ds, cfg.ckpt.save_steps, cfg.ckpt.save_hf
        self.evaluates, self.complete = cfg.eval.steps > 0, complete
        self.state, self.learner, self.rollout = state, learner, rollout
        self.checkpoints, self.observer, self.evaluator, self.tasks = checkpoints, observer, evaluator, tasks
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
        self.safe: tuple[int, int] | None = None
        """The same of the last that is committed."""
        self.committing: asyncio.Task[Any] | None = None
        """The checkpoint that is being written, or was last."""

    async def save(self) -> None:
        """What is due at this version. Called when no step is under way."""
        due = self.state.due(self.every)
        await self._checkpoint(due)
        if due and self.exports:
            await self.export()

    async def _checkpoint(self, due: bool) -> None:
        """Begin one if it is due, or if an evaluation finds these weights the best, or may. The learner may step when
        this returns, `committing` ends when it is safe."""
        judged = self.evaluator.of(self.state.version)
        candidate = judged is not None and self.evaluator.may_beat(self.best, judged)
        if not self.writes or not (due or candidate):
            return
        if judged is None:
            await self.evaluator.ended()
        with self.observer.phase("checkpoint", self.state.version):
            async with self._one:
                await self.settled()
                if candidate or self.saved != self.state.progress:  # else a rescue has taken it meanwhile
                    await self._take(due)

    async def _take(self, due: bool) -> None:
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
        judged = self.evaluator.of(cut.version)
        self.committing = self.tasks.create_task(self._commit(cut, due, judged), name=f"commit {cut.version}")

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
        await self.evaluator.ended()
        if not self.writes:
            return
        with self.observer.phase("checkpoint", self.state.version):
            async with self._one:
                await self.settled()
                if self.saved != self.state.progress and not self.state.learning:
                    await self._take(due=True)
            await self.settled()

    def give_up(self) -> None:
        """What is being written is not waited for any longer; it does not become a checkpoint."""
        if self.committing:
            self.committing.cancel()

    async def _commit(self, cut: Cut, due: bool, judged: Evaluation | None) -> None:
        """In the background. What fails here ends the run, as its task group sees it; a disk that refuses does not."""
        ledger, before = self.state.ledger, self.best
        try:
            groups = await self.rollout.fetch([item.payload for _, item in cut.accepted])
            if judged is not None:
                await judged.ended()
            score = judged.score if judged is not None and self.evaluator.may_beat(self.best, judged) else None
            # Known only now: an evaluation of this version was under way when the cut was taken.
            owed = cut.version in self.evaluator.owes
            if not due and score is None and not owed:
                await self._drop(cut)
                return
            start = time.time()
            if score is not None:
                self.best = score
            await asyncio.to_thread(ledger.sync)  # what the checkpoint counts on must not be younger than it
            rows = [(flight, item.meta, group) for (flight, item), group in zip(cut.accepted, groups, strict=True)]
            await self.checkpoints.commit(cut.version, {**cut.facts, OWED: owed}, rows, self.learner, score)
        except OSError as e:
            self.best = before
            self._refused(cut, e)
            return
        self.safe = self.saved
        ledger.committed(cut.version, cut.ledger_lines)
        # this line is for the audit: the checkpoint is whole, and stands on what was synced before
        await asyncio.to_thread(ledger.try_to_sync)
        self.observer.spans("ckpt", [(start, time.time())], f"write {cut.version}")

    async def _drop(self, cut: Cut) -> None:
        """Taken for an evaluation that does not find it the best: what the ranks have written of it goes."""
        await self.learner.written()
        self.saved = self.safe
        self.checkpoints.discard(cut.version)

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
        if self.state.learning or self.copying or not self.ready:
            return "The learner is in the middle of a step or a checkpoint; the checkpoint before counts."
        await self.evaluator.give_up(self.state.version)
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
        self.safe = self.saved = self.state.progress
        if owed := bool(facts.get(OWED)) and self.evaluates:
            self.evaluator.owes.add(version)
        for _, item in accepted:
            self.observer.selection.restored(item.meta)
        self.observer.rewind(version, evaluated=not owed)
