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
from ..errors import InfraError, StallError
from ..learner.balance import assign_ranks
from ..ports import Learner, Prompts, Publisher, Rollout
from ..replay.ledger import Ledger
from ..types import BatchItem, GroupMeta, GroupState, Task, TrainBatch
from .checkpoint import Checkpoints
from .diagnosis import describe
from .evaluation import Evaluator
from .observer import Observer
from .resume import Saver
from .source import Flight
from .state import RunState
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
        self.cfg, self.rollout, self.learner, self.publisher, self.observer = cfg, rollout, learner, publisher, observer
        self.tasks = asyncio.TaskGroup()
        """All that runs; what fails there ends the run."""
        self.rolls: dict[int, asyncio.Task] = {}
        self.state = state = RunState(cfg, prompts, ledger, observer.group)
        self.saver = Saver(state, learner, rollout, checkpoints, observer, self.tasks)
        self.evaluator = Evaluator(cfg, measure, observer, best=checkpoints.best()[1])
        self.failed_in_a_row = 0
        self.watchdog = Watchdog(cfg.stall_timeout_s, lambda: describe(state, observer, rollout), self.saver.rescue, cfg.run_dir)
        observer.on_phase = self.watchdog.beat

    async def run(self, resume: bool = False) -> None:
        async with self.tasks:
            background = [self.tasks.create_task(self.watchdog.run(), name="watchdog")]
            if resume:
                await self.saver.restore()
            await self.push()
            background.append(self.tasks.create_task(self.produce(), name="produce"))
            await self.train()
            for task in background:
                task.cancel()

    async def produce(self) -> None:
        """Until the run is over: a prompt may come back, as surplus, after the last one was issued."""
        while True:
            await self.state.signal.until(self.state.may_issue)
            flight, task = self.state.issue(asyncio.get_running_loop().time())
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
        del self.rolls[flight.dispatch]
        self.settle(flight, meta, payload, failed)

    def settle(self, flight: Flight, meta: GroupMeta | None, payload: Any, failed: str | None) -> None:
        """A rolled group moves on. Raises StallError when too many in a row failed for good."""
        state = self.state
        if failed is None:
            seconds = asyncio.get_running_loop().time() - flight.started_at
            state.depth.finished(meta.verdict.keep, seconds, len(state.rolling) - 1, self.rollout.engine_stats())
        end = state.settle(flight, meta, payload, failed)
        self.failed_in_a_row = self.failed_in_a_row + 1 if end == GroupState.FAILED else 0 if failed is None else self.failed_in_a_row
        if self.failed_in_a_row > state.B:
            raise StallError(
                f"{self.failed_in_a_row} groups in a row failed for good, the last by {failed!r} after {flight.reissues + 1} tries. "
                "The environment, an engine or the verifier is down: see its log, then go on with --resume."
            )

    async def train(self) -> None:
        state = self.state
        while state.version < state.max_steps and (items := await self.next_batch()):
            batch = TrainBatch(state.version, items, assign_ranks([i.meta for i in items], self.cfg.actor.world_size))
            start = asyncio.get_running_loop().time()
            async with self.publisher.changing():
                with self.observer.phase("step", state.version):
                    report = await self.learner.step(batch)
                state.trained(report.version)
                self.observer.selection.trained(item.meta for item in items)
                if self.push_due:
                    await self.push()
            state.depth.stepped(asyncio.get_running_loop().time() - start)
            state.check()
            self.observer.step(report, state.budget, self.rollout.engine_stats() | state.depth.facts())
            best = await self.evaluator.evaluate(state.version) if self.due(self.cfg.eval.steps) else None
            if best is not None or self.due(self.cfg.ckpt.save_steps):
                await self.saver.save(best)
        for dispatch in abandon(state):
            self.rolls.pop(dispatch).cancel()
        if state.pushed < state.version:  # the prompts ran out between two pushes
            async with self.publisher.changing():
                await self.push()
        await self.saver.finish()

    async def next_batch(self) -> list[BatchItem]:
        """The B oldest dispatched groups, once the gate is open; fewer when the prompts are through; none at the end."""
        state = self.state
        with self.observer.phase("wait for replay", state.version):
            await state.signal.until(state.batch_ready)
        with self.observer.phase("wait for gate", state.version):
            await state.signal.until(state.gate_open)
        drop_surplus(state)
        return state.take()

    async def push(self) -> None:
        """Engines get the learner's weights, verified, before anything of the next version can be trained."""
        state = self.state
        if self.cfg.pipeline.drain:
            state.budget.pause()
            with self.observer.phase("drain", state.version):
                await state.signal.until(lambda: not state.rolling)
        with self.observer.phase("push", state.version):
            self.observer.pushed(await self.publisher.publish(state.version))
        state.push_done()

    @property
    def version(self) -> int:
        """Updates behind the learner's weights."""
        return self.state.version

    @property
    def push_due(self) -> bool:
        """Every pipeline.push_every steps; an evaluation and the end need the last weights, whatever the count."""
        state = self.state
        last = state.version == state.max_steps
        return last or state.version - state.pushed >= self.cfg.pipeline.push_every or self.due(self.cfg.eval.steps)

    def due(self, every: int) -> bool:
        """Whether something that happens every so many steps happens now."""
        return every > 0 and self.state.version % every == 0
