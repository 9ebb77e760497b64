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
from .checkpoints import scheduler_state
from .checkpoints.checkpoint import Checkpoints
from .evaluation import Evaluation, Evaluator
from .observer import Observer
from .scheduler import AcceptedGroup, RolloutScheduler, SchedulerSnapshot

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
        scheduler: RolloutScheduler,
        learner: Learner,
        rollout: Rollout,
        checkpoints: Checkpoints,
        observer: Observer,
        evaluator: Evaluator,
        tasks: asyncio.TaskGroup,
        complete: Callable[[Path], None],
    ) -> None:
        self.settings = cfg
        self.writes, self.every, self.exports = not cfg.ckpt.disable_ds, cfg.ckpt.save_steps, cfg.ckpt.save_hf
        self.evaluates, self.complete = cfg.eval.steps > 0, complete
        self.scheduler, self.learner, self.rollout = scheduler, learner, rollout
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
        """`RolloutScheduler.progress` at the last snapshot that is committed, or is being written."""
        self.safe: tuple[int, int] | None = None
        """The same of the last that is committed."""
        self.committing: asyncio.Task[Any] | None = None
        """The checkpoint that is being written, or was last."""

    async def save(self) -> None:
        """What is due at this version. Called when no step is under way."""
        due = self.scheduler.crossed(self.every)
        await self._checkpoint(due)
        if due and self.exports:
            await self.export()

    async def _checkpoint(self, due: bool) -> None:
        """Begin one if it is due, or if an evaluation finds these weights the best, or may. The learner may step when
        this returns, `committing` ends when it is safe."""
        judged = self.evaluator.of(self.scheduler.version)
        candidate = judged is not None and self.evaluator.may_beat(self.best, judged)
        if not self.writes or not (due or candidate):
            return
        if judged is None:
            await self.evaluator.ended()
        with self.observer.phase("checkpoint", self.scheduler.version):
            async with self._one:
                await self.settled()
                if candidate or self.saved != self.scheduler.progress:  # else a rescue has taken it meanwhile
                    await self._take(due)

    async def _take(self, due: bool) -> None:
        """By the holder of the lock, when nothing is being written."""
        snapshot, self.saved = self.scheduler.snapshot(), self.scheduler.progress
        self.copying = True
        try:
            await self.checkpoints.take(snapshot.version, self.learner)
        except OSError as e:
            self._refused(snapshot, e)
            return
        finally:
            self.copying = False
            self.scheduler.notify()
        judged = self.evaluator.of(snapshot.version)
        self.committing = self.tasks.create_task(self._commit(snapshot, due, judged), name=f"commit {snapshot.version}")

    async def export(self) -> None:
        """The weights as a model beside the checkpoints (ckpt.save_hf). A disk that refuses costs this one."""
        directory = self.checkpoints.export_of(self.scheduler.version)
        with self.observer.phase("checkpoint", self.scheduler.version):
            try:
                directory.parent.mkdir(parents=True, exist_ok=True)
                await self.learner.export(directory)
                await asyncio.to_thread(self.complete, directory)
            except OSError as e:
                log.error(
                    "The model of version %d could not be exported to %s: %s. Training goes on.",
                    self.scheduler.version,
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
        with self.observer.phase("checkpoint", self.scheduler.version):
            async with self._one:
                await self.settled()
                if self.saved != self.scheduler.progress and not self.scheduler.learner_is_busy:
                    await self._take(due=True)
            await self.settled()

    def give_up(self) -> None:
        """What is being written is not waited for any longer; it does not become a checkpoint."""
        if self.committing:
            self.committing.cancel()

    async def _commit(self, snapshot: SchedulerSnapshot, due: bool, judged: Evaluation | None) -> None:
        """In the background. What fails here ends the run, as its task group sees it; a disk that refuses does not."""
        ledger, before = self.scheduler.ledger, self.best
        try:
            groups = await self.rollout.fetch([item.payload for _, item in snapshot.accepted])
            if judged is not None:
                await judged.ended()
            score = judged.score if judged is not None and self.evaluator.may_beat(self.best, judged) else None
            # Known only now: an evaluation of this version was under way when the cut was taken.
            owed = snapshot.version in self.evaluator.owes
            if not due and score is None and not owed:
                await self._drop(snapshot)
                return
            start = time.time()
            if score is not None:
                self.best = score
            await asyncio.to_thread(ledger.sync)  # what the checkpoint counts on must not be younger than it
            rows = [
                (attempt, item.meta, group) for (attempt, item), group in zip(snapshot.accepted, groups, strict=True)
            ]
            facts = {**scheduler_state.to_facts(snapshot, self.settings), OWED: owed}
            await self.checkpoints.commit(snapshot.version, facts, rows, self.learner, score)
        except OSError as e:
            self.best = before
            self._refused(snapshot, e)
            return
        self.safe = self.saved
        ledger.committed(snapshot.version, snapshot.ledger_mark.lines)
        # this line is for the audit: the checkpoint is whole, and stands on what was synced before
        await asyncio.to_thread(ledger.try_to_sync)
        self.observer.spans("ckpt", [(start, time.time())], f"write {snapshot.version}")

    async def _drop(self, snapshot: SchedulerSnapshot) -> None:
        """Taken for an evaluation that does not find it the best: what the ranks have written of it goes."""
        await self.learner.written()
        self.saved = self.safe
        self.checkpoints.discard(snapshot.version)

    def _refused(self, snapshot: SchedulerSnapshot, error: OSError) -> None:
        """CheckpointFailed says itself how much room it needs; any other is of the ledger's disk."""
        self.saved = None
        self.checkpoints.discard(snapshot.version)
        said = str(error).rstrip(".")
        log.error(
            "The checkpoint of version %d could not be written: %s. %s Training goes on.",
            snapshot.version,
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
        if self.scheduler.learner_is_busy or self.copying or not self.ready:
            return "The learner is in the middle of a step or a checkpoint; the checkpoint before counts."
        await self.evaluator.give_up(self.scheduler.version)
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
            self.scheduler.start_over()
            self.observer.rewind(0)
            return
        facts, rows = await asyncio.to_thread(self.checkpoints.read, path)
        version = await self.learner.load(path / "learner")
        accepted = [
            AcceptedGroup(attempt, BatchItem(meta, await self.rollout.store(group))) for attempt, meta, group in rows
        ]
        self.scheduler.restore(scheduler_state.from_facts(facts, version, accepted))
        self.safe = self.saved = self.scheduler.progress
        if owed := bool(facts.get(OWED)) and self.evaluates:
            self.evaluator.owes.add(version)
        for _, item in accepted:
            self.observer.selection.restored(item.meta)
        self.observer.rewind(version, evaluated=not owed)
