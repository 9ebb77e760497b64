"""The main loop.

    prompts -> [budget] -> rollout actors -> groups -> filters -> replay -> learner -> weights -> rollout actors

    stage     consumes              produces            waits for                          unblocked by
    produce   prompts               flights             a slot, an open gate of the push   a filtered group, a step
    roll      a flight              a buffered group    the rollout actor                  the group's deadline
    train     B buffered groups     a new version       replay, the staleness gate         roll
    (early)   some of the B         their gradients     as many as a part has              roll
    push      a new version         verified weights    evaluate; in drain modes roll      evaluate, roll
    evaluate  verified weights      figures, the best   engines, beside all but push       its deadline

One asyncio task per stage and flight, in the controller, which holds metadata and references only. Between two awaits
the state is consistent: a slot, its ledger line and its flight change together, so a checkpoint may cut anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from ..backoff import backoff_s
from ..config import Config
from ..errors import InfraError, Stopped
from ..learner.minibatches import train_batch
from ..ports import Learner, Prompts, Publisher, Rollout
from ..replay.ledger import Ledger
from ..types import BatchItem, GroupMeta, Task
from .checkpoints.checkpoint import Checkpoints
from .diagnosis import describe
from .evaluation import Evaluator
from .health import Health
from .observer import Observer
from .resume import Saver
from .source import Flight
from .state import RunState
from .stop import StopRequest, wind_down
from .surplus import abandon, drop_surplus
from .watchdog import Watchdog


class Pipeline:
    """One training run. `run` ends when max_steps are done or the prompts are through; raises Stopped on request."""

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
        measure: Callable[[], Coroutine[Any, Any, dict[str, float]]] | None = None,
        stop: StopRequest | None = None,
        complete: Callable[[Path], None] = lambda directory: None,
    ) -> None:
        self.cfg, self.rollout, self.learner, self.publisher, self.observer = cfg, rollout, learner, publisher, observer
        self.tasks = asyncio.TaskGroup()  # all that runs; what fails there ends the run
        self.rollouts: dict[int, asyncio.Task[None]] = {}
        self.producing = False
        """True while groups may be issued: from the first push until the last step has ended."""
        self.stop, self.health = stop or StopRequest(cfg.train.stop_grace_s), Health(cfg)
        self.state = state = RunState(cfg, prompts, ledger, observer.group, observer.left)
        self.evaluator = Evaluator(cfg, measure, observer, self.tasks)
        self.saver = Saver(cfg, state, learner, rollout, checkpoints, observer, self.evaluator, self.tasks, complete)
        said = partial(describe, state, observer, rollout)
        self.watchdog = Watchdog(cfg.stall_timeout_s, said, self.saver.rescue, cfg.run_dir)
        observer.on_phase = self.watchdog.beat

    async def run(self, resume: bool = False) -> None:
        said = None
        async with self.tasks:
            watchdog = self.tasks.create_task(self.watchdog.run(), name="watchdog")
            training = self.tasks.create_task(self.train(resume), name="train")
            if await self.stop.or_done(training):
                self.state.pause()
                said = await wind_down(training, self.state, self.saver, self.stop)
            watchdog.cancel()
            for roll in self.rollouts.values():
                roll.cancel()
        if said is not None:
            raise Stopped(f"The run was stopped: {self.stop.asked}. {said}")

    async def train(self, resume: bool) -> None:
        if resume:
            async with self.publisher.changing():
                await self.saver.restore()
        self.saver.ready = True
        await self.push()
        await self.evaluator.begin(self.version)  # which a resumed run owes
        await self.saver.save()
        producing = self.tasks.create_task(self.produce(), name="produce")
        self.producing = True
        try:
            while self.version < self.state.max_steps and (rest := await self.next_batch()):
                await self.step(rest)
        finally:
            producing.cancel()
            self.producing = False
        for dispatch in abandon(self.state):
            self.rollouts.pop(dispatch).cancel()
        if self.state.pushed < self.version:  # the prompts ran out between two pushes
            await self.push()
        await self.saver.finish()
        self.state.finished()

    async def produce(self) -> None:
        """Until the run is over: a prompt may come back, as surplus, after the last one was issued."""
        while True:
            await self.state.signal.until(self.state.may_issue)
            self.start_groups()

    def start_groups(self) -> None:
        """Issue as many groups as may start now."""
        while self.state.may_issue():
            flight, task = self.state.issue(asyncio.get_running_loop().time())
            self.rollouts[flight.dispatch] = self.tasks.create_task(self.roll(flight, task), name=f"roll {flight.key}")

    async def roll(self, flight: Flight, task: Task) -> None:
        """A flight until it moves on. Infrastructure that fails costs this attempt; where it always does, the run."""
        meta: GroupMeta | None = None
        payload: Any = None
        try:
            meta, payload = await self.rollout.run_group(flight.key, task)
            failed = meta.failed
        except InfraError as e:
            failed = e.reason
        if failed is not None:
            # A launcher that stops a whole job ends its environment servers as well. What that costs must not end the
            # run while it saves its checkpoint; the resume issues the group again.
            await self.stop.hold_if_asked()
        if failed is None:
            self.watchdog.beat()
        in_turn = self.state.settles_in_turn(flight, meta, failed)
        if in_turn:
            await self.state.signal.until(lambda: self.state.is_turn_of(flight))
        self.state.method.settled(meta)
        if failed is None and meta is not None:
            self.state.measured(flight, meta, asyncio.get_running_loop().time(), self.rollout.engine_stats())
        else:  # what is down needs time to come back; the slot is held meanwhile
            await asyncio.sleep(backoff_s(flight.reissues, cap_s=self.cfg.train.max_backoff_s))
        del self.rollouts[flight.dispatch]
        end = self.state.settle(flight, meta, payload, failed)
        if in_turn and self.producing:
            self.start_groups()  # before the next group's turn: which prompt comes next depends on this one only
        self.health.settled(end, meta, payload, failed, tries=flight.reissues + 1)
        if self.health.unproductive:
            raise await self.health.why_unproductive(self.rollout)

    async def next_batch(self) -> list[BatchItem]:
        """The B groups dispatched first, less those accumulated, once the gate is open; at the end fewer, then none."""
        state = self.state
        while True:
            with self.observer.phase("wait for replay", self.version):
                await state.signal.until(lambda: state.part_ready() or state.batch_ready())
            with self.observer.phase("wait for gate", self.version):
                await state.signal.until(lambda: state.part_ready() or state.gate_open())
            if state.step_due():
                drop_surplus(state)
                return state.take()
            await self.accumulate()

    async def accumulate(self) -> None:
        """A part of the batch -> its gradients. What allows it lasts while an engine joins, as replay only gains."""
        async with self.publisher.changing():
            await self.stop.hold_if_asked()
            part, start = self.state.take_part(), asyncio.get_running_loop().time()
            with self.observer.phase("accumulate", self.version):
                await self.learner.accumulate(train_batch(self.cfg, self.version, part))
            self.state.accumulated(asyncio.get_running_loop().time() - start)

    async def step(self, rest: list[BatchItem]) -> None:
        """The batch in hand, `rest` not accumulated -> new versions, in the engines too if that is due; what is due."""
        state, start, batch = self.state, asyncio.get_running_loop().time(), train_batch(self.cfg, self.version, rest)
        items = [item for _, item in state.in_hand]
        async with self.publisher.changing():
            await self.stop.hold_if_asked()
            state.begin_step(start)
            with self.observer.phase("step", self.version):
                report = await self.learner.step(batch)
            if not report.finite:
                state.not_trained("nonfinite_gradient")
                self.health.not_finite(report, items)
                return
            state.trained(report)
            if state.due(self.cfg.eval.steps):
                self.evaluator.owes.add(self.version)
        self.health.trained(report)
        self.observer.selection.trained(item.meta for item in items)
        try:
            if state.push_due(evaluating=self.evaluator.open, owed=self.version in self.evaluator.owes):
                start += await self.evaluator.ended()
                await self.push()
            state.stepped(asyncio.get_running_loop().time() - start)
            state.check()
        finally:  # a stop gives the push up; the step is done, is saved at this boundary, and has its row
            facts = self.rollout.engine_stats() | state.depth.facts() | state.source.prompts.facts()
            self.observer.step(report, state.budget, facts)
        await self.evaluator.begin(self.version)
        await self.saver.save()

    async def push(self) -> None:
        """Engines get the learner's weights, verified, before anything of the next version can be trained."""
        await self.evaluator.ended()
        if self.cfg.pipeline.drain:  # without a lock: an engine that joins may be what the last groups wait for
            self.state.pause()
            with self.observer.phase("drain", self.version):
                await self.state.signal.until(lambda: not self.state.rolling)
        with self.observer.phase("push", self.version):
            self.observer.pushed(await self.publisher.publish(self.version, must_differ=self.state.moved))
        self.state.push_done()

    @property
    def version(self) -> int:
        """Updates behind the learner's weights."""
        return self.state.version
