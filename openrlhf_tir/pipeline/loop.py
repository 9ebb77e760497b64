"""The training loop.

    prompts -> [scheduler] -> rollout actors: groups, rewards, filters -> filter over several groups -> buffer
            -> learner -> weights -> rollout actors

    asyncio task consumes                produces               waits for                      unblocked by
    produce      prompts                 rolling groups         scheduler.can_dispatch()       a group, a step, a push
    roll         a rolling group         a buffered group       the rollout actor              rollout.group_deadline_s
    train        buffered groups         a new policy version   a full batch, then the gate    roll
      accumulate   some of a batch         their gradients        can_accumulate_part()          roll
      push         a new version           verified weights       an evaluation; with drain      evaluate, roll
                                                                also every rolling group
    evaluate     verified weights        metrics, a score       engines, beside the rollouts   rollout.group_deadline_s
    watchdog     phases, groups          -                      Config.stall_timeout_s         -

One asyncio task for each of these, and one for each rolling group, in the controller process, which holds metadata and
references only. (`Task` is a prompt's problem, and no asyncio task.) Between two awaits the scheduler's state is
consistent, so a checkpoint may be taken at any of them except while the learner steps or accumulates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from ..config import Config
from ..errors import USER_CODE_REASONS, InfraError, Stopped
from ..learner.minibatches import make_train_batch
from ..ports import Learner, Prompts, Publisher, Rollout
from ..types import BatchItem, GroupMeta, GroupState, Task
from ..waiting.backoff import backoff_s
from .checkpoints.checkpoint import Checkpoints
from .diagnosis import describe
from .drop_notice import DropNotice
from .evaluation import Evaluator
from .health import Health
from .ledger.ledger import Ledger
from .method_errors import MethodErrors
from .observer import Observer
from .saver import Saver
from .scheduler import InFlightGroup, RolloutScheduler
from .scheduler.core import END_OF_RUN
from .stop import StopRequest, wind_down
from .watchdog import Watchdog


class Pipeline:
    """One training run: `run` returns when train.max_steps updates are done or the prompts are through."""

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
        method_errors: MethodErrors | None = None,
        complete: Callable[[Path], None] = lambda directory: None,
    ) -> None:
        """Wire the loop.

        Args:
            cfg: The run's configuration.
            prompts: The stream of prompts.
            rollout: Runs groups on the engines.
            learner: Trains batches.
            publisher: Sends the learner's weights to the engines and proves them.
            ledger: Open ledger of the run directory.
            checkpoints: The checkpoint directory.
            observer: Writes metrics, spans and progress.
            measure: Evaluates the engines' weights and returns metrics; None if the run has no evaluation.
            stop: Tells when the run is asked to stop; by default nobody asks.
            method_errors: The count of the attempt before, which lost its learner or groups; by default a new one.
            complete: Adds to an exported model what the learner does not know of (ckpt.save_hf).
        """
        self.cfg = cfg
        self.rollout = rollout
        self.learner = learner
        self.publisher = publisher
        self.observer = observer
        self.tasks = asyncio.TaskGroup()
        """Everything that runs. What fails there ends the run."""
        self.group_tasks: dict[int, asyncio.Task[None]] = {}
        """The asyncio task of each rolling group, by sequence number."""
        self.producing = False
        """True while groups may be dispatched: from the first push until the last step has ended."""
        self.stop = stop or StopRequest(cfg.train.stop_grace_s)
        self.health = Health(cfg)
        self.method_errors = method_errors or MethodErrors()
        self.scheduler = RolloutScheduler(cfg, prompts, ledger, on_dropped=observer.group_left)
        self.evaluator = Evaluator(cfg, measure, observer, self.tasks)
        self.saver = Saver(
            cfg, self.scheduler, learner, rollout, checkpoints, observer, self.evaluator, self.tasks, complete
        )
        describe_stall = partial(describe, self.scheduler, observer, rollout)
        self.watchdog = Watchdog(cfg.stall_timeout_s, describe_stall, self.saver.rescue, cfg.run_dir)
        self.drop_notice = DropNotice(cfg.rollout.batch_size, rollout, observer.progress.notice)
        observer.on_phase = self.watchdog.beat

    async def run(self, resume: bool = False) -> None:
        """Train until the run is over.

        Args:
            resume: Continue from the latest checkpoint.

        Raises:
            Stopped: The run was asked to stop; a checkpoint was taken if there was something to save.
            ExceptionGroup: A task failed; it holds the errors of all that failed.
        """
        outcome = None
        async with self.tasks:
            watchdog = self.tasks.create_task(self.watchdog.run(), name="watchdog")
            notices = self.tasks.create_task(self.drop_notice.run(), name="drop notice")
            training = self.tasks.create_task(self.train(resume), name="train")
            if await self.stop.or_done(training):
                self.scheduler.stop()
                outcome = await wind_down(training, self.scheduler, self.saver, self.stop)
            watchdog.cancel()
            notices.cancel()
            for group_task in self.group_tasks.values():
                group_task.cancel()
        if outcome is not None:
            raise Stopped(f"The run was stopped: {self.stop.reason}. {outcome}")

    async def train(self, resume: bool) -> None:
        """The trainer: push the first weights, then step by step to the end, with what is due after each step."""
        if resume:
            async with self.publisher.exclusive_learner():
                await self.saver.restore()
        self.saver.ready = True  # From here on a stop can save: the state is whole, restored or new.
        await self.push()
        await self.evaluator.begin_if_pending(self.version)  # A resumed run may have an evaluation pending.
        await self.saver.save_if_due()
        producer = self.tasks.create_task(self.produce(), name="produce")
        self.producing = True
        try:
            while self.version < self.cfg.train.max_steps and (remaining_items := await self.next_batch()):
                await self.train_one_batch(remaining_items)
        finally:
            producer.cancel()
            self.producing = False
        for sequence_number in self.scheduler.abandon():
            self.observer.group_finished(GroupState.REQUEUED, None, END_OF_RUN)
            self.group_tasks.pop(sequence_number).cancel()
        if self.scheduler.pushed_version < self.version:  # The prompts ran out between two pushes.
            await self.push()
        await self.saver.finish()
        self.scheduler.ledger.finished()

    async def produce(self) -> None:
        """The producer. Runs until cancelled: a prompt may come back, as surplus, after the last was dispatched."""
        while True:
            await self.scheduler.wait_until(self.scheduler.can_dispatch)
            self.dispatch_groups()

    def dispatch_groups(self) -> None:
        """Dispatch as many groups as may start now, each as a task of its own."""
        while self.scheduler.can_dispatch():
            group, task = self.scheduler.dispatch(asyncio.get_running_loop().time())
            group_task = self.tasks.create_task(self.roll(group, task), name=f"roll {group.key}")
            self.group_tasks[group.sequence_number] = group_task

    async def roll(self, group: InFlightGroup, task: Task) -> None:
        """Run a group until it moves on. A fault of the infrastructure costs this attempt; too many end the run.

        Raises:
            MethodBroken: User code failed too many groups.
            StallError: Too many groups in a row failed for good.
            Unproductive: Nothing of several batches could be trained.
            PipelineError: No engine is left and none will come, or the ledger could not be written.
        """
        meta, payload, failure = await self._attempt(group, task)

        # Order: without a batch ahead, what is decided below must not depend on which group ended first.
        in_order = self.scheduler.must_finish_in_order(group, meta, failure)
        if in_order:
            await self.scheduler.wait_until(lambda: self.scheduler.is_oldest_unfinished(group))

        # Verdict: the rollout actor has applied the filters of one group. The filter over several groups comes here.
        self.method_errors.record_attempt(meta)
        meta = self.scheduler.method.judge_across_groups(meta)
        if failure is None and meta is not None:
            now = asyncio.get_running_loop().time()
            self.scheduler.group_judged(group, meta, now, self.rollout.engine_stats())

        # Pause: what is down needs time to come back, for this prompt or the next one. The group keeps its slot
        # meanwhile.
        if failure is not None and failure not in USER_CODE_REASONS:
            await asyncio.sleep(backoff_s(group.retries))

        # Transition: buffered, filtered, requeued or failed.
        del self.group_tasks[group.sequence_number]
        state = self.scheduler.finish_group(group, meta, payload, failure)
        self.observer.group_finished(state, meta, failure)
        if in_order and self.producing:
            # Before the next group's turn: which prompt is dispatched next may depend on this group only.
            self.dispatch_groups()

        # Health: a run that goes nowhere ends.
        self.drop_notice.ended(state, meta, payload, failure)
        self.health.group_finished(state, meta, payload, failure, tries=group.retries + 1)
        if self.health.unproductive:
            raise await self.health.why_unproductive(self.rollout)

    async def _attempt(self, group: InFlightGroup, task: Task) -> tuple[GroupMeta | None, Any, str | None]:
        """Run a group on an engine.

        Returns:
            Its metadata, None if it failed before it was judged; the reference to its trajectories; and the code of
            the fault, if there was one.
        """
        meta: GroupMeta | None = None
        payload: Any = None
        try:
            meta, payload = await self.rollout.run_group(group.key, task)
            failure = meta.failed
        except InfraError as e:
            failure = e.reason
        if failure is None:
            self.watchdog.beat()
        else:
            # A launcher that stops a whole job also ends its environment servers. What that costs must not end the run
            # while it saves its checkpoint; the resume dispatches the group again.
            await self.stop.hold_if_asked()
        return meta, payload, failure

    async def next_batch(self) -> list[BatchItem]:
        """Wait for a batch and return its groups that are not accumulated yet.

        Parts are accumulated meanwhile. A full batch that the gate lets pass is taken first.

        The list is empty only if the prompts are through: a part that is accumulated leaves an accepted group.

        Raises:
            ConservationError: A prompt was lost or counted twice.
            PipelineError: A group would be too old (a bug in the gate), or the ledger could not be written.
            LearnerDied: A rank died while it accumulated.
            MethodBroken: The user's estimator or policy loss failed.
        """
        scheduler = self.scheduler
        while True:
            with self.observer.phase("wait for groups", self.version):
                await scheduler.wait_until(lambda: scheduler.can_accumulate_part() or scheduler.can_fill_batch())
            with self.observer.phase("wait for gate", self.version):
                await scheduler.wait_until(lambda: scheduler.can_accumulate_part() or scheduler.gate_is_open())
            decision = scheduler.decide_batch()
            if decision is not None:
                return scheduler.take_batch(decision)
            await self.accumulate()

    async def accumulate(self) -> None:
        """Have the learner make the gradients of a part of the batch, while the rest still rolls.

        Raises:
            LearnerDied: A rank died.
            MethodBroken: The user's estimator or policy loss failed.
        """
        async with self.publisher.exclusive_learner():
            await self.stop.hold_if_asked()
            # An engine may have joined meanwhile. The part may still be taken: groups were only added to the buffer.
            part = self.scheduler.take_next_part()
            start = asyncio.get_running_loop().time()
            with self.observer.phase("accumulate", self.version):
                await self.learner.accumulate(make_train_batch(self.cfg, self.version, part))
            self.scheduler.part_accumulated(asyncio.get_running_loop().time() - start)

    async def train_one_batch(self, remaining_items: list[BatchItem]) -> None:
        """Train the current batch, push if that is due, then begin the evaluation and the checkpoint that are due.

        Args:
            remaining_items: The groups of the batch that are not accumulated yet.

        Raises:
            LearnerDied: A rank died, in the step or while it wrote its weights or its checkpoint.
            MethodBroken: The user's estimator or policy loss failed.
            Diverged: Several steps in a row had no finite gradient.
            ConservationError: A prompt was lost or counted twice.
            InfraError: As Publisher.publish, if a push was due.
        """
        scheduler = self.scheduler
        start = asyncio.get_running_loop().time()
        batch = make_train_batch(self.cfg, self.version, remaining_items)
        all_items = [item for _, item in scheduler.current_batch]
        # No engine joins during a step: it would be given weights that are neither the old nor the new ones.
        async with self.publisher.exclusive_learner():
            await self.stop.hold_if_asked()
            scheduler.step_started(start)
            with self.observer.phase("step", self.version):
                report = await self.learner.step(batch)
            scheduler.step_ended(report)
            if not report.finite:
                # The step changed nothing: there is no new version to push, to evaluate or to give a row of metrics.
                self.health.not_finite(report, all_items)
                return
            if scheduler.crossed(self.cfg.eval.steps):
                self.evaluator.pending.add(self.version)
        self.health.trained(report)
        self.method_errors.updated_since_start = True
        self.observer.selection.trained(item.meta for item in all_items)
        try:
            evaluation_pending = self.version in self.evaluator.pending
            if scheduler.push_is_due(
                evaluation_running=self.evaluator.is_running, evaluation_pending=evaluation_pending
            ):
                start += await self.evaluator.wait_until_ended()  # Waiting for an evaluation is not the learner's work.
                await self.push()
            scheduler.timing.step_finished(asyncio.get_running_loop().time() - start)
            scheduler.check()
        finally:
            # A stop gives the push up. The step is done, is saved at this boundary, and gets its row of metrics.
            self.observer.step_finished(
                report,
                batch_groups=scheduler.rule.batch_groups,
                rolling=len(scheduler.rolling),
                buffered=len(scheduler.buffered),
                extra=self.rollout.engine_stats() | scheduler.metrics(),
            )
        await self.evaluator.begin_if_pending(self.version)
        await self.saver.save_if_due()

    async def push(self) -> None:
        """Give the engines the learner's weights, verified, before anything of the next version can be trained.

        Raises:
            InfraError, Diverged: As in Publisher.publish. An engine that fails raises nothing: it is replaced.
        """
        await self.evaluator.wait_until_ended()
        if self.cfg.pipeline.drain:
            # Without the publisher's lock: an engine that joins may be what the last groups wait for.
            self.scheduler.start_draining()
            with self.observer.phase("drain", self.version):
                await self.scheduler.wait_until(lambda: not self.scheduler.rolling)
        with self.observer.phase("push", self.version):
            report = await self.publisher.publish(self.version, must_differ=self.scheduler.weights_must_differ)
            self.observer.push_finished(report)
        self.scheduler.push_finished()

    @property
    def version(self) -> int:
        """Updates behind the learner's weights."""
        return self.scheduler.version
