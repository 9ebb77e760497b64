"""Saver: when a checkpoint is taken, what goes into it, and how a resume puts it back.

    take      scheduler.snapshot() and the call to the learner, without an await in between, so that groups, ledger and
              weights belong together; the learner's ranks copy their state to host memory, and training waits for that
    commit    in the background: the buffered groups are fetched, everything is written, the checkpoint becomes valid

After a resume buffered groups and those of the current batch are buffered, the prompts of rolling groups are dispatched
again as new attempts, and whatever happened after the snapshot is rolled back in the ledger.

A version that is being evaluated is copied at once. It is written when its score shows that it is the best, or if a
checkpoint was due anyway.

A disk that refuses (full, gone) costs that checkpoint: an error is logged, the one before stays, training goes on.
"""

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
from ..waiting.daemon_threads import in_daemon_thread
from .checkpoints import model_export, scheduler_state
from .checkpoints.checkpoint import Checkpoints
from .evaluation import Evaluation, Evaluator
from .observer import Observer
from .scheduler import AcceptedGroup, RolloutScheduler, SchedulerSnapshot

log = logging.getLogger(__name__)
EVALUATION_PENDING = "evaluation_owed"
"""Fact of a checkpoint: the evaluation of its version was pending. The resume makes it after its first push."""


class Saver:
    """Takes checkpoints, one at a time, so that host memory holds at most one copy of the learner's state.

    With ckpt.max_num = 0 nothing is saved, and there is nothing to resume from.
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
        """Create a saver.

        Args:
            cfg: The run's configuration.
            scheduler: Gives the snapshots.
            learner: Saves and loads weights, optimizer and random state.
            rollout: Fetches the buffered groups, and stores them again after a resume.
            checkpoints: The checkpoint directory.
            observer: Writes spans; forgets rows that a resume has rolled back.
            evaluator: Knows which evaluation runs or is pending.
            tasks: Runs the background writes. What fails there ends the run.
            complete: Adds to an exported model what the learner does not know of (ckpt.save_hf).
        """
        self.settings = cfg
        self.writes = cfg.ckpt.max_num > 0
        self.exports = cfg.ckpt.save_hf
        self.complete = complete
        self.scheduler = scheduler
        self.learner = learner
        self.rollout = rollout
        self.checkpoints = checkpoints
        self.observer = observer
        self.evaluator = evaluator
        self.tasks = tasks
        self.ready = False
        """True once the scheduler's state is that of the run, new or restored. Before, there is nothing to save."""
        self.copying = False
        """True while the learner's ranks copy their state."""
        self._one = asyncio.Lock()
        """Held until a checkpoint is on its way. The trainer, a stop and the watchdog's rescue may ask for the same
        checkpoint, and would write the same files."""
        self.best = checkpoints.best()[1]
        """Score of the best checkpoint."""
        self.last_snapshot: tuple[int, int] | None = None
        """`RolloutScheduler.progress` at the last snapshot that is committed, or is being written."""
        self.last_committed_snapshot: tuple[int, int] | None = None
        """The same for the last snapshot that was committed."""
        self.exported: int | None = None
        """Version whose export, if there is one, is of this run's lineage: it was made here, or is the checkpoint's."""
        self.committing: asyncio.Task[Any] | None = None
        """The task that writes a checkpoint, or wrote the last one."""

    async def save_if_due(self) -> None:
        """Take the checkpoint and the export that are due at this version. Call it while no step is under way.

        Raises:
            PipelineError: The learner steps or accumulates, which is a bug in the loop.
            ConservationError: The books do not add up.
            LearnerDied: A rank died while it copied its state. A disk that refuses raises nothing.
        """
        due = self.scheduler.crossed(self.settings.ckpt.save_steps)
        # After a resume the checkpoint is there, and maybe not the export that was due with it.
        await self._checkpoint(due and self.last_committed_snapshot != self.scheduler.progress)
        if due and self.exports and not self.checkpoints.export_of(self.scheduler.version).exists():
            await self.export()

    async def _checkpoint(self, due: bool) -> None:
        """Begin a checkpoint if it is due, or if an evaluation may find these weights the best.

        The learner may step when this returns; the task `committing` ends when the checkpoint is safe.
        """
        evaluation = self.evaluator.of(self.scheduler.version)
        candidate = evaluation is not None and self.evaluator.may_beat(self.best, evaluation)
        if not self.writes or not (due or candidate):
            return
        if evaluation is None:
            # One of an earlier version may run. No crash may lose its score, which a resume could not measure again.
            await self.evaluator.wait_until_ended()
        with self.observer.phase("checkpoint", self.scheduler.version):
            async with self._one:
                await self.wait_until_written()
                if candidate or self.last_snapshot != self.scheduler.progress:  # Otherwise a rescue has taken it.
                    await self._take(due)

    async def _take(self, due: bool) -> None:
        """Take a snapshot and begin to write it. Only with the lock held, while nothing is being written."""
        snapshot = self.scheduler.snapshot()
        self.last_snapshot = self.scheduler.progress
        self.copying = True
        try:
            if self.exports and self.exported != snapshot.version:
                # One that is there is of a lineage that a resume has left. The next resume must not take it for ours.
                self.checkpoints.drop_export(snapshot.version)
            await self.checkpoints.take(snapshot.version, self.learner)
        except OSError as e:
            self._refused(snapshot, e)
            return
        finally:
            self.copying = False
            self.scheduler.notify()
        evaluation = self.evaluator.of(snapshot.version)
        self.committing = self.tasks.create_task(
            self._commit(snapshot, due, evaluation), name=f"commit {snapshot.version}"
        )

    async def export(self) -> None:
        """Write the weights as a model beside the checkpoints (ckpt.save_hf). A disk that refuses costs this export.

        Raises:
            LearnerDied: A rank died meanwhile.
        """
        version = self.scheduler.version
        directory = self.checkpoints.export_of(version)
        with self.observer.phase("checkpoint", version):
            try:
                await model_export.export(self.learner, directory, self.complete)
            except OSError as e:
                log.error(
                    "The model of version %d could not be exported to %s: %s. Training goes on.", version, directory, e
                )
                return
        self.exported = version

    async def wait_until_written(self) -> None:
        """Wait until no checkpoint is being written."""
        if self.committing:
            await asyncio.wait({self.committing})

    async def finish(self) -> None:
        """Make sure that everything up to now is in a safe checkpoint, or an error was logged.

        If the learner has begun a step meanwhile, the checkpoint before it counts.

        Raises:
            LearnerDied, PipelineError, ConservationError: As in `save_if_due`.
        """
        await self.evaluator.wait_until_ended()
        if not self.writes:
            return
        with self.observer.phase("checkpoint", self.scheduler.version):
            async with self._one:
                await self.wait_until_written()
                if self.last_snapshot != self.scheduler.progress and not self.scheduler.learner_is_busy:
                    await self._take(due=True)
            await self.wait_until_written()

    async def give_up(self) -> None:
        """Give up the checkpoint that is being written. When this returns, `last_committed` says what counts."""
        if self.committing:
            self.committing.cancel()
            await self.wait_until_written()

    async def _commit(self, snapshot: SchedulerSnapshot, due: bool, evaluation: Evaluation | None) -> None:
        """Write a snapshot, in the background. A disk that refuses costs this checkpoint and raises nothing.

        Raises:
            PayloadLost: A buffered group was lost with its node. The ranks start again, as after LearnerDied.
            LearnerDied: A rank died before its files were written.
            PipelineError: The ledger could not be written, which ends the run.
        """
        ledger = self.scheduler.ledger
        best_before = self.best
        try:
            groups = await self.rollout.fetch([item.payload for _, item in snapshot.accepted])
            if evaluation is not None:
                await evaluation.wait_until_ended()
            is_best = evaluation is not None and self.evaluator.may_beat(self.best, evaluation)
            score = evaluation.score if evaluation is not None and is_best else None
            # Known only now: an evaluation of this version was running when the snapshot was taken.
            pending = snapshot.version in self.evaluator.pending
            if not due and score is None and not pending:
                await self._drop(snapshot)
                return
            start = time.time()
            if score is not None:
                self.best = score
            await in_daemon_thread(ledger.sync)  # The ledger's lines must be on disk before the checkpoint.
            rows = [
                (attempt, item.meta, group) for (attempt, item), group in zip(snapshot.accepted, groups, strict=True)
            ]
            facts = {**scheduler_state.to_facts(snapshot, self.settings), EVALUATION_PENDING: pending}
            await self.checkpoints.commit(snapshot.version, facts, rows, self.learner, score)
        except OSError as e:
            self.best = best_before
            self._refused(snapshot, e)
            return
        self.last_committed_snapshot = self.last_snapshot
        ledger.committed(snapshot.version, snapshot.ledger_mark.lines)
        # This line is for the audit only: the checkpoint is complete without it.
        await asyncio.to_thread(ledger.try_to_sync)
        self.observer.trace.add("ckpt", f"write {snapshot.version}", start, time.time())

    async def _drop(self, snapshot: SchedulerSnapshot) -> None:
        """Discard a checkpoint that was taken only for an evaluation, which did not find it the best."""
        await self.learner.written()
        self.last_snapshot = self.last_committed_snapshot
        self.checkpoints.discard(snapshot.version)

    def _refused(self, snapshot: SchedulerSnapshot, error: OSError) -> None:
        """Log that a disk refused a checkpoint, and discard it."""
        self.last_snapshot = None
        self.checkpoints.discard(snapshot.version)
        reason = str(error).rstrip(".")
        log.error(
            "The checkpoint of version %d could not be written: %s. %s Training goes on.",
            snapshot.version,
            reason,
            self.last_committed(),
        )

    def last_committed(self) -> str:
        """Return a sentence that names the checkpoint from which a resume would begin."""
        try:
            path = self.checkpoints.latest()
        except CheckpointDamaged as e:  # The sentence is part of another message, which it must not replace.
            return str(e)
        return (
            f"The last checkpoint is {path}; --resume goes on from it."
            if path
            else "There is no checkpoint: --resume would begin anew."
        )

    async def rescue(self) -> str:
        """Take a checkpoint of a run that stalled, if the learner is idle. Return a sentence about what became of
        it."""
        if not self.writes:
            return "No checkpoint is written, as ckpt.max_num = 0 says."
        if self.scheduler.learner_is_busy or self.copying or not self.ready:
            return "The learner is in the middle of a step or a checkpoint; the checkpoint before counts."
        await self.evaluator.give_up(self.scheduler.version)
        await self.finish()
        return (
            f"Version {self.last_snapshot[0]} was saved."
            if self.last_snapshot
            else "No checkpoint could be written, see the log; the one before counts."
        )

    async def restore(self) -> None:
        """Continue from the last checkpoint, or from the beginning if none was committed.

        Raises:
            CheckpointDamaged: The checkpoint or its ledger is not as it was committed.
            ConfigError: It is of other data, or of a model or method that does not fit this run.
            LearnerDied: A rank died while it loaded.
            OSError: A file cannot be read.
        """
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
        self.last_committed_snapshot = self.last_snapshot = self.scheduler.progress
        self.exported = version
        pending = bool(facts.get(EVALUATION_PENDING)) and self.settings.eval.steps > 0
        if pending:
            self.evaluator.pending.add(version)
        for _, item in accepted:
            self.observer.selection.restored(item.meta)
        self.observer.rewind(version, evaluated=not pending)
