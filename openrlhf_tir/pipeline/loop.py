"""The main loop.

    prompts -> [budget] -> rollout actors -> groups -> filters -> replay -> learner -> weights -> rollout actors

    stage     consumes              produces            waits for                          unblocked by
    produce   prompts               flights             a slot, an open gate of the push   a filtered group, a finished step
    roll      a flight              a buffered group    the rollout actor                  the group's deadline
    train     B buffered groups     a new version       replay, the staleness gate         roll
    push      a new version         verified weights    (drain modes) rolling groups       roll

One asyncio task per stage and flight, in the controller, which holds metadata and references only. Between two awaits the state is
consistent: a slot, its ledger line and its flight change together, so a checkpoint may cut anywhere in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ..config import Config
from ..errors import InfraError, PipelineError, StallError
from ..learner.balance import assign_ranks
from ..ports import Learner, Prompts, Publisher, Rollout
from ..replay.buffer import ReplayBuffer
from ..replay.ledger import Ledger
from ..types import BatchItem, GroupMeta, Task, TrainBatch
from .budget import Budget, gate_open
from .checkpoint import Checkpoints
from .depth import depth_for
from .diagnosis import describe
from .evaluation import evaluate
from .observer import Observer
from .resume import rescue, restore, save
from .signal import Signal
from .source import Flight, Source
from .surplus import abandon, drop_surplus
from .watchdog import Watchdog

BACKOFF_S = 1.0
"""Pause before a failed group is issued again, doubled each time: with train.max_reissues = 5 an outage of half a minute costs no prompt."""


class Pipeline:
    """One training run. `run` returns when max_steps are done or the prompts are through."""

    def __init__(
        self,
        cfg: Config,
        *,
        prompts: Prompts,
        rollout: Rollout,
        learner: Learner,
        publisher: Publisher,
        ledger: Ledger,
        checkpoints: Checkpoints,
        observer: Observer,
        measure: Callable[[], Awaitable[dict[str, float]]] | None = None,
    ) -> None:
        self.cfg, self.rollout, self.learner, self.publisher = cfg, rollout, learner, publisher
        self.ledger, self.checkpoints, self.observer, self.measure = ledger, checkpoints, observer, measure
        self.B, self.S = cfg.rollout.batch_size, cfg.pipeline.S
        self.signal = Signal()
        self.depth = depth_for(cfg)
        self.budget = Budget(batch_groups=self.B, max_staleness=self.S, depth=self.depth, signal=self.signal)
        self.source = Source(prompts, ledger)
        self.replay = ReplayBuffer()
        self.flights: dict[int, Flight] = {}
        self.rolls: dict[int, asyncio.Task] = {}
        self.version, self.pushed = 0, 0
        """Updates behind the learner's weights, and behind those of the engines."""
        self.tasks = asyncio.TaskGroup()
        """All that runs; what fails there ends the run."""
        self.saved: tuple[int, int] | None = None
        self.committing: asyncio.Task | None = None
        """The checkpoint that is being written, or was last: its cut, and its task."""
        _, self.best = checkpoints.best()
        """Of all evaluations."""
        self.failed_in_a_row = 0
        self.watchdog = Watchdog(cfg.stall_timeout_s, lambda: describe(self), lambda: rescue(self), cfg.run_dir)
        observer.on_phase = self.watchdog.beat

    async def run(self, resume: bool = False) -> None:
        async with self.tasks:
            background = [self.tasks.create_task(self.watchdog.run(), name="watchdog")]
            if resume:
                await restore(self)
            self.stepped()
            await self.push()
            background.append(self.tasks.create_task(self.produce(), name="produce"))
            await self.train()
            for task in background:
                task.cancel()

    async def produce(self) -> None:
        """Until the run is over: a prompt may come back, as surplus, after the last one was issued."""
        while True:
            await self.signal.until(lambda: self.budget.admits() and self.source.ready)
            flight, task = self.source.issue(self.pushed, asyncio.get_running_loop().time())
            self.flights[flight.dispatch] = flight
            self.budget.enter()
            self.rolls[flight.dispatch] = self.tasks.create_task(self.roll(flight, task), name=f"roll {flight.key}")

    async def roll(self, flight: Flight, task: Task) -> None:
        try:
            meta, payload = await self.rollout.run_group(flight.key, task)
            failed = meta.failed
        except InfraError as e:
            meta, payload, failed = None, None, e.reason
        if failed is None:
            self.watchdog.beat()
        else:  # what is down needs time to come back; the slot is held meanwhile
            await asyncio.sleep(BACKOFF_S * 2**flight.reissues)
        self.settle(flight, meta, payload, failed)

    def settle(self, flight: Flight, meta: GroupMeta | None, payload: Any, failed: str | None) -> None:
        """A rolled group's one transition: buffered, filtered, issued again, or failed for good."""
        del self.rolls[flight.dispatch]
        if failed is None:
            seconds = asyncio.get_running_loop().time() - flight.started_at
            self.depth.finished(meta.verdict.keep, seconds, self.budget.rolling - 1, self.rollout.engine_stats())
        if failed is None and meta.verdict.keep:
            self.replay.add(flight.place, BatchItem(meta, payload))
            end = "buffered"
        else:
            del self.flights[flight.dispatch]
            if failed is None:
                end, reason = "filtered", meta.verdict.reason
                self.ledger.ended(end, flight.key, reason=reason)
            elif flight.reissues < self.cfg.train.max_reissues:
                end = "requeued"
                self.source.requeue(flight, failed)
            else:
                end = "failed"
                self.ledger.ended(end, flight.key, reason=failed)
        self.observer.group(end, meta, failed)
        self.budget.move("rolling", end)
        self.failed_in_a_row = self.failed_in_a_row + 1 if end == "failed" else 0 if failed is None else self.failed_in_a_row
        if self.failed_in_a_row > self.B:
            raise StallError(
                f"{self.failed_in_a_row} groups in a row failed for good, the last by {failed!r} after {flight.reissues + 1} tries. "
                "The environment, an engine or the verifier is down: see its log, then go on with --resume."
            )

    async def train(self) -> None:
        while self.version < self.cfg.train.max_steps and (items := await self.next_batch()):
            batch = TrainBatch(self.version, items, assign_ranks([i.meta for i in items], self.cfg.actor.world_size))
            start = asyncio.get_running_loop().time()
            async with self.publisher.changing():
                with self.observer.phase("step", self.version):
                    report = await self.learner.step(batch)
                for item in items:
                    self.ledger.ended("trained", item.meta.key, step=self.version)
                self.observer.selection.trained(item.meta for item in items)
                self.stepped()
                if self.push_due:
                    await self.push()
            self.depth.stepped(asyncio.get_running_loop().time() - start)
            self.budget.unpushed = self.version - self.pushed
            self.budget.move("training", "trained", len(items))
            self.check()
            self.observer.step(report, self.budget, self.rollout.engine_stats() | self.depth.facts())
            best = await evaluate(self) if self.due(self.cfg.eval.steps) else None
            if best is not None or self.due(self.cfg.ckpt.save_steps):
                await save(self, best)
        abandon(self)
        if self.pushed < self.version:  # the prompts ran out between two pushes
            async with self.publisher.changing():
                await self.push()
        if self.saved != self.cut:
            await save(self)
        await self.committing

    async def next_batch(self) -> list[BatchItem]:
        """The B oldest dispatched groups, once the gate is open; fewer when the prompts are through; none at the end."""
        with self.observer.phase("wait for replay", self.version):
            await self.signal.until(lambda: len(self.replay) >= self.B or self.exhausted)
        with self.observer.phase("wait for gate", self.version):
            await self.signal.until(self.gate)
        drop_surplus(self)
        taken = self.replay.take(min(self.B, len(self.replay)))
        for dispatch, _ in taken:
            del self.flights[dispatch]
        self.budget.move("buffered", "training", len(taken))
        for _, item in taken:
            if self.version - item.meta.oldest_version > self.S:
                raise PipelineError(
                    f"Group {item.meta.key} has tokens of version {item.meta.oldest_version} at version {self.version}: beyond S = {self.S}. A bug in the gate."
                )
        return [item for _, item in taken]

    def gate(self) -> bool:
        buffered = [self.flights[d].version + self.S for d in self.replay.dispatches()]
        rolling = [self.flights[d].version + self.S for d in self.rolls]
        return gate_open(self.version, self.B, buffered, rolling, self.depth.possible)

    async def push(self) -> None:
        """Engines get the learner's weights, verified, before anything of the next version can be trained."""
        if self.cfg.pipeline.drain:
            self.budget.pause()
            with self.observer.phase("drain", self.version):
                await self.signal.until(lambda: not self.budget.rolling)
        with self.observer.phase("push", self.version):
            self.observer.pushed(await self.publisher.publish(self.version))
        self.pushed = self.version
        self.budget.resume()

    def stepped(self) -> None:
        """The learner has new weights, the engines not yet."""
        self.version = self.learner.version
        self.budget.still_needed = (self.cfg.train.max_steps - self.version) * self.B

    @property
    def push_due(self) -> bool:
        """Every pipeline.push_every steps; an evaluation and the end need the last weights, whatever the count."""
        last = self.version == self.cfg.train.max_steps
        return last or self.version - self.pushed >= self.cfg.pipeline.push_every or self.due(self.cfg.eval.steps)

    def check(self) -> None:
        """The law of conservation, after every step. Raises ConservationError with what does not add up."""
        self.budget.check(rolling=len(self.rolls), buffered=len(self.replay), training=0)
        self.ledger.check_open(f.key for f in self.flights.values())

    @property
    def cut(self) -> tuple[int, int]:
        """What a checkpoint taken now would hold: (updates, attempts that ended)."""
        return self.version, self.ledger.ends

    @property
    def exhausted(self) -> bool:
        """No prompt left to issue, and none rolling that could fail and come back."""
        return not self.source.ready and not self.budget.rolling

    def due(self, every: int) -> bool:
        """Whether something that happens every so many steps happens now."""
        return every > 0 and self.version % every == 0
