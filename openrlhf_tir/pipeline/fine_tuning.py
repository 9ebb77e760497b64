"""Supervised fine-tuning: the loop, without the processes that run it.

    restore -> held-out loss -> sft_step, sft_step, ...    until the schedule ends, or a stop is requested
                                every eval.steps: held-out loss
                                every ckpt.save_steps: checkpoint, written in the background
    a stop: the running update ends, then a checkpoint, then Stopped

The rows of an update are a function of its number, so a resume needs to know nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, Protocol

from ..config import Config
from ..data.sft.tokens import SftRow
from ..errors import CheckpointFailed, Diverged, Stopped
from ..ports import Saves
from .checkpoints.checkpoint import Checkpoints
from .health import MAX_NONFINITE_STEPS
from .stop import StopRequest

log = logging.getLogger(__name__)
EVAL_LOSS = "eval/loss"
ROWS_TAKEN = "rows_taken"
"""Key of a checkpoint's state: rows that the updates so far have taken."""


class Tuner(Saves, Protocol):
    """What fine-tuning needs of the learner."""

    async def sft_step(self, rows: list[SftRow], lr: float) -> Mapping[str, float]:
        """Make one update on these rows and return its metrics."""

    async def sft_loss(self, rows: list[SftRow]) -> tuple[float, float]:
        """Return the sum of the loss over the learned tokens of these rows, in nats, and the sum of their weights."""

    async def load(self, directory: Path) -> int:
        """Restore what `save` wrote, and return the version."""


@dataclass(frozen=True)
class Schedule:
    """Which rows each update takes.

    All epochs stand end to end, each in an order of its own; update s takes positions s * B to (s + 1) * B - 1.

    Attributes:
        rows: Number of rows.
        batch_size: Rows per update (B).
        epochs: Passes over the rows.
        seed: Seed of the orders.
        max_steps: Largest number of updates; None: no limit.
    """

    rows: int
    batch_size: int
    epochs: int
    seed: int
    max_steps: int | None = None

    @classmethod
    def of(cls, cfg: Config, rows: int) -> Schedule:
        """Return the schedule of a run on this number of rows."""
        return cls(rows, cfg.sft.batch_size, cfg.sft.max_epochs, cfg.train.seed, cfg.sft.max_steps)

    @property
    def steps(self) -> int:
        """Number of updates."""
        return min(math.ceil(self.rows * self.epochs / self.batch_size), self.max_steps or 10**12)

    def batch(self, step: int) -> list[int]:
        """Return the indices of the rows of an update. The last batch may be smaller, so that no row is left out."""
        positions = range(self.rows_taken(step), self.rows_taken(step + 1))
        return [_order(self.rows, self.seed, position // self.rows)[position % self.rows] for position in positions]

    def rows_taken(self, step: int) -> int:
        """Return how many rows the first `step` updates take together."""
        return min(step * self.batch_size, self.rows * self.epochs)

    def epoch(self, step: int) -> float:
        """Return how many passes over the rows the first `step` updates are."""
        return self.rows_taken(step) / self.rows


@lru_cache(maxsize=2)
def _order(rows: int, seed: int, epoch: int) -> list[int]:
    return Random(f"sft/{seed}/{epoch}").sample(range(rows), rows)


@dataclass
class FineTuning:
    """One run of fine-tuning.

    Attributes:
        cfg: The run's configuration.
        schedule: Which rows each update takes.
        rows: The rows to train.
        held_out: Rows whose loss is measured.
        tuner: The learner.
        checkpoints: Where checkpoints go.
        lr_at: Number of an update -> its learning rate.
        observe: Called with the number of updates and their metrics, which include the held-out loss if measured.
        stop: The request to stop.
        clock: Returns seconds.
        step: Number of updates so far.
    """

    cfg: Config
    schedule: Schedule
    rows: Sequence[SftRow]
    held_out: Sequence[SftRow]
    tuner: Tuner
    checkpoints: Checkpoints
    lr_at: Callable[[int], float]
    observe: Callable[[int, dict[str, float]], None]
    stop: StopRequest
    clock: Callable[[], float] = time.monotonic
    step: int = 0
    _writing: asyncio.Task[Path] | None = field(default=None, init=False)
    _saved: int = field(default=-1, init=False)
    """Number of updates of the last checkpoint; -1: there is none."""

    async def run(self, resume: Path | None = None) -> None:
        """Train until the schedule ends.

        Args:
            resume: The checkpoint to resume from.

        Raises:
            Stopped: A stop was requested, and the running update and its checkpoint are done. An update that is still
                running at the end of the grace period is given up.
            Diverged: The gradients of MAX_NONFINITE_STEPS updates in a row were not finite.
        """
        training = asyncio.create_task(self._run(resume), name="fine-tuning")
        try:
            if await self.stop.or_done(training):
                await self._wait_until_stopped(training)
        finally:
            await self._give_up(training)
        await training

    async def _give_up(self, training: asyncio.Task[None]) -> None:
        """Cancel what still runs, and wait for its end."""
        left = {task for task in (training, self._writing) if task and not task.done()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    async def _wait_until_stopped(self, training: asyncio.Task[None]) -> None:
        """Wait for the end of a run that was asked to stop. Raises Stopped at the end of the grace period."""
        try:
            async with asyncio.timeout_at(self.stop.deadline):
                await asyncio.wait({training})
        except TimeoutError:
            await self._give_up(training)  # Until then its checkpoint may become the last one.
            raise Stopped(
                f"Stopped by {self.stop.reason}: the update or its checkpoint did not end within train.stop_grace_s ="
                f" {self.stop.grace_s:g} s. {self._last_checkpoint()}"
            ) from None

    async def _run(self, resume: Path | None) -> None:
        if resume is not None:
            await self.tuner.load(resume / "learner")
            self.step = self._saved = int(self.checkpoints.state(resume)["step"])
        elif self.held_out:
            self.observe(0, {EVAL_LOSS: await self.held_out_loss()})
        nonfinite = 0
        while self.step < self.schedule.steps and not self.stop.reason:
            row = await self._update()
            nonfinite = 0 if math.isfinite(row["grad_norm"]) else nonfinite + 1
            last = self.step == self.schedule.steps
            if self.held_out and (last or _is_due(self.step, self.cfg.eval.steps)) and not self.stop.reason:
                row[EVAL_LOSS] = await self.held_out_loss()
            self.observe(self.step, row)
            if nonfinite == MAX_NONFINITE_STEPS:
                await self._wait_until_written()
                raise Diverged(
                    f"The gradient of {nonfinite} updates in a row, up to update {self.step}, is not finite; none of"
                    f" them changed the weights. Lower sft.learning_rate = {self.cfg.sft.learning_rate:g}, or use"
                    f" ds.param_dtype bf16 or fp32. {self._last_checkpoint()}"
                )
            if last or _is_due(self.step, self.cfg.ckpt.save_steps):
                await self._save()
        if self.step < self.schedule.steps:
            if self._saved != self.step:
                await self._save()
            await self._wait_until_written()
            raise Stopped(
                f"Stopped by {self.stop.reason} after update {self.step} of {self.schedule.steps}."
                f" {self._last_checkpoint()}"
            )
        await self._wait_until_written()

    async def _update(self) -> dict[str, float]:
        """Make one update and return its metrics."""
        started = self.clock()
        batch = [self.rows[i] for i in self.schedule.batch(self.step)]
        metrics = await self.tuner.sft_step(batch, self.lr_at(self.step))
        self.step += 1
        seconds = self.clock() - started
        tokens = sum(len(row.token_ids) for row in batch)
        facts = {
            "epoch": self.schedule.epoch(self.step),
            "trained_tokens": float(sum(row.trained for row in batch)),
            "step_s": seconds,
        }
        return {**metrics, **facts, "tokens_per_s": tokens / seconds if seconds > 0 else 0.0}

    async def held_out_loss(self) -> float:
        """Return the mean loss over all learned tokens of the held-out rows, in nats per token."""
        total = weight = 0.0
        size = self.schedule.batch_size
        for start in range(0, len(self.held_out), size):
            batch_loss, batch_weight = await self.tuner.sft_loss(list(self.held_out[start : start + size]))
            total += batch_loss
            weight += batch_weight
        return total / weight

    async def _save(self) -> None:
        """Begin a checkpoint: the learner's state is held as it is now and written while training goes on.

        A disk that refuses is logged, and the next checkpoint tries again.
        """
        await self._wait_until_written()
        try:
            await self.checkpoints.take(self.step, self.tuner)
        except CheckpointFailed as e:
            log.warning("%s", e)
            return
        state: dict[str, Any] = {
            "step": self.step,
            "world_size": self.cfg.actor.world_size,
            ROWS_TAKEN: self.schedule.rows_taken(self.step),
        }
        self._writing = asyncio.create_task(self.checkpoints.commit(self.step, state, [], self.tuner))
        self._saved = self.step

    async def _wait_until_written(self) -> None:
        """Wait for the checkpoint that is being written. A failure is logged."""
        writing, self._writing = self._writing, None
        if writing is not None:
            try:
                await writing
            except CheckpointFailed as e:
                self._saved = -1
                log.warning("%s", e)

    def _last_checkpoint(self) -> str:
        """Return a sentence that names the last checkpoint."""
        latest = self.checkpoints.latest()
        return f"Checkpoint {latest.name} counts: go on with --resume." if latest else "There is no checkpoint."


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
