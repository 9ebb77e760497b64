"""Fine-tuning: rows -> updates, until the schedule ends or a stop is asked for. The loop, without the processes that
run it.

    restore ->  [ held-out loss ]  ->  sft_step, sft_step, ...  ->  every ckpt.save_steps: checkpoint   (written in the
                background)
                                        every sft.eval_steps: held-out loss
    a stop: the running update ends, checkpoint, Stopped

Which rows an update takes is a function of its number: a resume needs nothing besides.
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
from .stop import StopRequest

log = logging.getLogger(__name__)
EVAL_LOSS = "eval/loss"
TAKEN = "rows_taken"


class Tuner(Saves, Protocol):
    """What of the learner fine-tuning needs."""

    async def sft_step(self, rows: list[SftRow], lr: float) -> Mapping[str, float]: ...
    async def sft_loss(self, rows: list[SftRow]) -> tuple[float, float]: ...
    async def load(self, directory: Path) -> int: ...


@dataclass(frozen=True)
class Schedule:
    """Update s takes the rows at the places s*B .. (s+1)*B - 1 of all passes end to end; each has its own order."""

    rows: int
    batch_size: int
    epochs: int
    seed: int
    max_steps: int | None = None

    @classmethod
    def of(cls, cfg: Config, rows: int) -> Schedule:
        return cls(rows, cfg.sft.batch_size, cfg.sft.max_epochs, cfg.train.seed, cfg.sft.max_steps)

    @property
    def steps(self) -> int:
        return min(math.ceil(self.rows * self.epochs / self.batch_size), self.max_steps or 10**12)

    def batch(self, step: int) -> list[int]:
        """Indices of rows. The last batch of all may be smaller; none is left out."""
        places = range(self.taken(step), self.taken(step + 1))
        return [_order(self.rows, self.seed, place // self.rows)[place % self.rows] for place in places]

    def taken(self, step: int) -> int:
        """Places that so many updates have taken."""
        return min(step * self.batch_size, self.rows * self.epochs)

    def epoch(self, step: int) -> float:
        """Passes over the rows when so many updates are made."""
        return self.taken(step) / self.rows


@lru_cache(maxsize=2)
def _order(rows: int, seed: int, epoch: int) -> list[int]:
    return Random(f"sft/{seed}/{epoch}").sample(range(rows), rows)


@dataclass
class FineTuning:
    """`observe(step, row)`: metrics after `step` updates, a held-out loss where measured. `clock`: seconds."""

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
    """The update of the last checkpoint; -1: none."""

    async def run(self, resume: Path | None = None) -> None:
        """Raises Stopped at the boundary behind a request to stop, Diverged after train.max_nonfinite_steps bad
        gradients in a row; an update that is still running when the grace is over is given up."""
        training = asyncio.create_task(self._run(resume), name="fine-tuning")
        try:
            if await self.stop.or_done(training):
                await self._ends_in_time(training)
        finally:
            left = {task for task in (training, self._writing) if task and not task.done()}
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)
        await training

    async def _ends_in_time(self, training: asyncio.Task[None]) -> None:
        try:
            async with asyncio.timeout_at(self.stop.deadline):
                await asyncio.wait({training})
        except TimeoutError:
            raise Stopped(
                f"Stopped by {self.stop.asked}: the update or its checkpoint did not end within train.stop_grace_s ="
                f" {self.stop.grace_s:g} s and is given up. {self._last()}"
            ) from None

    async def _run(self, resume: Path | None) -> None:
        if resume is not None:
            await self.tuner.load(resume / "learner")
            self.step = self._saved = int(self.checkpoints.state(resume)["step"])
        elif self.held_out:
            self.observe(0, {EVAL_LOSS: await self.held_out_loss()})
        bad = 0
        while self.step < self.schedule.steps and not self.stop.asked:
            row = await self._update()
            bad = 0 if math.isfinite(row["grad_norm"]) else bad + 1
            last = self.step == self.schedule.steps
            if self.held_out and (last or _due(self.step, self.cfg.sft.eval_steps)) and not self.stop.asked:
                row[EVAL_LOSS] = await self.held_out_loss()
            self.observe(self.step, row)
            if bad == self.cfg.train.max_nonfinite_steps:
                await self._written()
                raise Diverged(
                    f"The gradient of {bad} updates in a row, up to update {self.step}, is not finite; none of them"
                    f" changed the weights. Lower sft.learning_rate = {self.cfg.sft.learning_rate:g}, or use"
                    f" ds.param_dtype bf16 or fp32. {self._last()}"
                )
            if last or _due(self.step, self.cfg.ckpt.save_steps):
                await self._save()
        if self.step < self.schedule.steps:
            if self._saved != self.step:
                await self._save()
            await self._written()
            raise Stopped(
                f"Stopped by {self.stop.asked} after update {self.step} of {self.schedule.steps}. {self._last()}"
            )
        await self._written()

    async def _update(self) -> dict[str, float]:
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
        """Mean over all learned tokens of the held-out rows, nats per token."""
        total = weight = 0.0
        size = self.schedule.batch_size
        for at in range(0, len(self.held_out), size):
            part, of = await self.tuner.sft_loss(list(self.held_out[at : at + size]))
            total, weight = total + part, weight + of
        return total / weight

    async def _save(self) -> None:
        """The learner's state is copied now and written while training goes on. A disk that refuses is said; the next
        checkpoint tries again."""
        await self._written()
        try:
            await self.checkpoints.take(self.step, self.tuner)
        except CheckpointFailed as e:
            log.warning("%s", e)
            return
        state: dict[str, Any] = {
            "step": self.step,
            "world_size": self.cfg.actor.world_size,
            TAKEN: self.schedule.taken(self.step),
        }
        self._writing = asyncio.create_task(self.checkpoints.commit(self.step, state, [], self.tuner))
        self._saved = self.step

    async def _written(self) -> None:
        """The checkpoint that is being written is committed, or it is said why not."""
        writing, self._writing = self._writing, None
        if writing is not None:
            try:
                await writing
            except CheckpointFailed as e:
                self._saved = -1
                log.warning("%s", e)

    def _last(self) -> str:
        latest = self.checkpoints.latest()
        return f"Checkpoint {latest.name} counts: go on with --resume." if latest else "There is no checkpoint."


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
