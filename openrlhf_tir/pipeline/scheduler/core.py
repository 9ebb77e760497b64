"""RolloutScheduler: keeps the books on every group, and decides what the pipeline does next.

    asyncio task   asks                       does                               then reports
    produce        can_dispatch()             dispatch()                         -
    roll           must_finish_in_order()     run the group on an engine         group_judged(), finish_group()
    train          can_accumulate_part()      take_next_part(), gradients        part_accumulated()
                   decide_batch()             take_batch(), learner step         step_started(), step_ended()
    push           push_is_due()              drain if asked to, publish         push_finished()
    checkpoint     -                          write in the background            snapshot()

Life of a group

    dispatch -> ROLLING -> BUFFERED -> TRAINING -> TRAINED
                   |          |           '------> FAILED    the gradient was not finite
                   |          '------------------> REQUEUED  surplus, or the run ended
                   '-> FILTERED, FAILED, or REQUEUED         its prompt is dispatched again as a new attempt

Decisions are pure: they read the state and change nothing, so a caller may ask as often as it likes. Transitions change
the state without an await: a group's slot, its ledger line and its place change together, so a checkpoint may be taken
between any two calls except while the learner steps or accumulates, when `snapshot` raises. A snapshot is an immutable
copy: a checkpoint never holds a live object.
"""

from __future__ import annotations

import bisect
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from ...config import Config
from ...errors import SUSPENDED, USER_CODE_REASONS, ConservationError, PipelineError, TaskRefused
from ...ports import Prompts
from ...types import BatchItem, GroupKey, GroupMeta, GroupState, PromptOutcome, StepReport, Task
from ..ledger.ledger import Ledger
from ..ledger.lines import BEGINNING
from ..method_state import MethodState
from ..wakeup import Wakeup
from .depth import DepthController, EngineLoad, depth_controller
from .early_accumulation import EarlyAccumulation
from .groups import AcceptedGroup, BatchDecision, InFlightGroup, SchedulerSnapshot
from .learner_timing import LearnerTiming
from .prompt_queue import PromptQueue
from .staleness import StalenessRule

MAX_RETRIES = 5
"""New attempts of a group after its actor or environment failed. With the pauses between them, up to a minute each, an
outage that lasts longer is no fault of the group's, and Health ends the run by name."""

END_OF_RUN = "end_of_run"
"""Why the attempts end that are under way at the end of the run."""

DropListener = Callable[[GroupState, GroupMeta, str], None]
"""Called when an accepted group is dropped before it was trained: its new state, its metadata, and the reason."""


class DispatchObstacle(Enum):
    """Why no group may start now, as the watchdog says it."""

    MAX_ROLLING = "rollout.vllm_generate_batch_size allows no more at once"
    STOP = "the run was asked to stop"
    DRAIN = "they wait for the next weight push"
    STALENESS = "pipeline.max_staleness has room for no more"
    END_OF_RUN = "the steps that are left need no more"
    DEPTH = "pipeline.depth wants no more under way"
    NO_PROMPT = "no prompt is left to dispatch"
    GATE = "a batch waits for the gate, and enough groups for the next one are under way"


class RolloutScheduler:
    """Decides what the pipeline does next, and keeps the books on every group. One per run, on one event loop.

    Three words of the staleness rule (staleness.py): a group's *due version* is the last version at which its
    batch may begin; *admission* bounds how many groups are under way, so that all of them can be trained by then; the
    *gate* holds a step back while a group that is due would become too old by it.

    Example (batch_groups = 2, batches_ahead = 1, one update per batch, so at most 4 groups are under way):

        groups = [scheduler.dispatch(now)[0] for _ in range(4)]    # version 0, so they are due by version 1
        assert not scheduler.can_dispatch()                        # admission: all 4 may be accepted
        ...                                                        # groups[2] and groups[3] finish
        scheduler.take_batch(scheduler.decide_batch())             # trains both at version 0
        scheduler.step_ended(report)
        scheduler.push_finished()
        younger = [scheduler.dispatch(now)[0] for _ in range(2)]   # version 1, due by version 2
        ...                                                        # both finish
        assert scheduler.decide_batch() is None                    # gate: groups[0] and groups[1] are due now and roll

    Attributes:
        rule: The staleness rule.
        depth: Says how many groups are useful.
        early_accumulation: Says when a part of a batch may be taken before the rest is there.
        method: The counters that rewards read, and the filter over several groups.
        timing: How long the learner's steps take.
        queue: The prompts that are still to be dispatched.
        ledger: The run's ledger.
        version: Updates behind the learner's weights.
        previous_version: The version before the latest batch.
        pushed_version: Updates behind the engines' weights.
        weights_must_differ: True if an update since the last push must have changed the weights.
        draining: True while the engines finish what they roll before a push.
        stopping: True once the run was asked to stop. No push ends that.
        batch_closed: True from `take_batch` to `step_ended`: nothing more comes to the current batch.
        stepping: True while the learner makes a step. Its weights then belong to no version.
        accumulating: True while the learner makes the gradients of a part of the current batch.
        dispatched: Groups that were dispatched, or restored from a checkpoint.
        ended: How many groups ended in which state.
        on_judged: Called with the metadata of every group that was rolled and judged, kept or not.
    """

    def __init__(
        self,
        settings: Config,
        prompts: Prompts,
        ledger: Ledger,
        depth: DepthController | None = None,
        *,
        on_dropped: DropListener = lambda state, meta, reason: None,
    ) -> None:
        """Create the scheduler of a new run.

        Args:
            settings: The run's configuration.
            prompts: The stream of prompts.
            ledger: Open ledger of the run directory.
            depth: Says how many groups are useful; by default what pipeline.depth asks for.
            on_dropped: Called when an accepted group is dropped before it was trained.
        """
        self._settings = settings
        self.max_retries = MAX_RETRIES
        self.queue = PromptQueue(prompts)
        self.ledger = ledger
        self.rule = StalenessRule.from_config(settings)
        self.timing = LearnerTiming()
        self.depth = depth or depth_controller(settings, self.timing)
        self.early_accumulation = EarlyAccumulation.from_config(settings)
        self.method = MethodState(settings)
        self._on_dropped = on_dropped
        self.on_judged: Callable[[GroupMeta], None] = lambda meta: None

        self.version = 0
        self.previous_version = 0
        self.pushed_version = 0
        self.weights_must_differ = False
        self.draining = False
        self.stopping = False
        self.batch_closed = False
        self.stepping = False
        self.accumulating = False

        self._rolling: dict[int, InFlightGroup] = {}
        self._buffered: list[AcceptedGroup] = []
        """In training order."""
        self._current_batch: list[AcceptedGroup] = []
        self._outcomes: list[tuple[int, PromptOutcome]] = []
        """Groups that ended since the last trained batch, with their sequence numbers."""
        self.dispatched = 0
        self.ended: Counter[GroupState] = Counter()
        self._changed = Wakeup()

    # --- what is where: read only

    @property
    def rolling(self) -> Mapping[int, InFlightGroup]:
        """The groups on engines, by sequence number."""
        return self._rolling

    @property
    def buffered(self) -> Sequence[AcceptedGroup]:
        """The accepted groups that no batch has taken yet, in training order."""
        return self._buffered

    @property
    def current_batch(self) -> Sequence[AcceptedGroup]:
        """The groups that the learner trains, or the parts of the next batch that it has accumulated."""
        return self._current_batch

    @property
    def slots_taken(self) -> int:
        """Groups under way: rolling, buffered or in the current batch."""
        return len(self._rolling) + len(self._buffered) + len(self._current_batch)

    @property
    def places_left(self) -> int:
        """Places that the current batch has left."""
        return self.rule.batch_groups - len(self._current_batch)

    @property
    def unpushed_batches(self) -> int:
        """Batches trained since the last push."""
        return self.rule.batches_between(self.pushed_version, self.version)

    @property
    def learner_is_busy(self) -> bool:
        """True while nothing else can be asked of the learner."""
        return self.stepping or self.accumulating

    @property
    def is_exhausted(self) -> bool:
        """True if no prompt is left and no rolling group could fail and bring one back."""
        return not self.queue.has_prompt and not self._rolling

    @property
    def progress(self) -> tuple[int, int]:
        """What a snapshot taken now would hold: the version, and the number of attempts that ended."""
        return self.version, self.ledger.ends

    # --- decisions: read only

    def can_dispatch(self) -> bool:
        """Return True if one more group may start now, is useful, and a prompt is left."""
        return self.dispatch_obstacle() is None

    def dispatch_obstacle(self) -> DispatchObstacle | None:
        """Return why no group may start now; None if one may."""
        rolling = len(self._rolling)
        buffered = len(self._buffered)
        accepted = buffered + len(self._current_batch)
        # What waits for the learner. Until the batch is closed, that includes its accumulated parts.
        waiting = buffered if self.batch_closed else accepted
        # A group that is dispatched now samples with weights that are already this many batches behind the learner's,
        # which uses up as much of its allowed staleness.
        allowed = self.rule.max_groups - self.unpushed_batches * self.rule.batch_groups

        if rolling >= self._max_rolling():
            return DispatchObstacle.MAX_ROLLING
        if self.stopping:
            return DispatchObstacle.STOP
        if self.draining:
            return DispatchObstacle.DRAIN
        if accepted + self.depth.max_accepted(rolling + 1) > allowed:
            return DispatchObstacle.STALENESS
        if accepted + self.depth.likely_accepted(rolling) >= self._groups_until_end():
            return DispatchObstacle.END_OF_RUN
        if not self.depth.wants_more(rolling, waiting):
            return DispatchObstacle.DEPTH
        if not self.queue.has_prompt:
            return DispatchObstacle.NO_PROMPT
        if self._waits_for_gate() and self.depth.paused_at_gate(rolling, waiting):
            return DispatchObstacle.GATE
        return None

    def can_fill_batch(self) -> bool:
        """Return True if the buffered groups fill the current batch, as far as it will ever be filled.

        Before the first step they must also fill `pipeline.fill_batches` batches.
        """
        return self.is_exhausted or self._batch_can_be_full()

    def gate_is_open(self) -> bool:
        """Return True if the next step leaves every remaining group trainable within max_staleness."""
        buffered = [self.rule.due_version(group) for group, _ in self._buffered]
        return self.rule.gate_is_open(
            self.version, buffered, self._due_versions_of_rolling(), self.depth.max_accepted, self.places_left
        )

    def decide_batch(self) -> BatchDecision | None:
        """Return the groups that complete the current batch and the surplus, or None while the learner must wait.

        A batch holds those of the buffered groups that were dispatched first. It waits for no rolling group, unless the
        gate does, so short responses may be trained sooner, but not more often. The last batch of the prompts may be
        smaller; an empty one says that the prompts are through.
        """
        if not self.can_fill_batch() or not self.gate_is_open():
            return None
        groups = [group for group, _ in self._buffered]
        drop = self.rule.surplus(self.version, groups, self.places_left)
        dropped = set(drop)
        kept = [group.sequence_number for group in groups if group.sequence_number not in dropped]
        return BatchDecision(train=tuple(kept[: self.places_left]), drop=drop)

    def can_accumulate_part(self) -> bool:
        """Return True if the learner may begin on a part of the batch. None is begun once the run was asked to stop."""
        part_groups = self.early_accumulation.part_groups
        leaves_a_rest = self.early_accumulation.leaves_a_rest(len(self._buffered), self.places_left)
        if not leaves_a_rest or self.draining or self.stopping or not self._startup_fill_reached():
            return False
        part = [self.rule.due_version(group) for group, _ in self._buffered[:part_groups]]
        return self.early_accumulation.may_take(
            self.version, part, self._due_versions_of_rolling(), self.places_left - part_groups
        )

    def push_is_due(self, *, evaluation_running: bool, evaluation_pending: bool) -> bool:
        """Return True if the engines must get the learner's weights now.

        A push comes every pipeline.push_every batches, before an evaluation, and after the last batch. While an
        evaluation runs, which needs its weights to stay, it is delayed as long as staleness allows.
        """
        if evaluation_pending or self.version >= self._settings.train.max_steps:
            return True
        every = self.rule.batches_ahead + 1 if evaluation_running else self._settings.pipeline.push_every
        return self.unpushed_batches >= every

    def crossed(self, every: int) -> bool:
        """Return True if the latest batch reached or passed a multiple of `every` updates. Never if `every` < 1."""
        return every > 0 and self.version // every > self.previous_version // every

    def must_finish_in_order(self, group: InFlightGroup, meta: GroupMeta | None, failure: str | None) -> bool:
        """Return True if this group may not finish before all groups that were dispatched before it.

        A run whose groups are trained in the batch that follows their dispatch (batches_ahead = 0) must not depend on
        which group ends first. Its decisions that look at other groups are made in dispatch order:

            the verdict of length_balance
            which prompt follows a group that was filtered or failed for good, where environments have shares
            which prompt follows an accepted group, where they have and fewer groups may roll than a batch holds

        Everything else that a group's end decides counts from the next batch on, or is the same in any order, so no
        other run waits.

        Args:
            group: The group.
            meta: Its metadata; None if it failed before it was judged.
            failure: Code of the fault, if infrastructure or user code failed.
        """
        if self.rule.batches_ahead > 0:
            return False
        if failure is not None or meta is None:
            return self.queue.may_replace and not self._is_retried(group, failure)
        if not meta.verdict.keep:
            return self.queue.may_replace
        # Where a bound on rolling groups, and not the batch, decides when the next prompt is dispatched, an accepted
        # group makes room for one as well.
        frees_a_slot = self._max_rolling() < self.rule.batch_groups
        return self.method.depends_on_earlier_groups(meta) or (self.queue.may_replace and frees_a_slot)

    def _is_retried(self, group: InFlightGroup, failure: str | None) -> bool:
        """Return True if a group that failed is dispatched again.

        One that user code failed is not: the code is the same, and a new sample that avoids the bug would be chosen by
        it. One whose row the environment refuses is dispatched once more: another server may know the row.
        """
        if failure == SUSPENDED:
            return True
        if failure == TaskRefused.reason:
            return group.retries < min(1, self.max_retries)
        return failure not in USER_CODE_REASONS and group.retries < self.max_retries

    def is_oldest_unfinished(self, group: InFlightGroup) -> bool:
        """Return True if every group that was dispatched before this one has finished for good."""
        return min(self._rolling) == group.sequence_number and not self.queue.waits_before(group.sequence_number)

    # --- transitions: no awaits

    def dispatch(self, now: float) -> tuple[InFlightGroup, Task]:
        """Start the next prompt as a rolling group. Only when `can_dispatch` returns True.

        Args:
            now: Event loop time in seconds.

        Returns:
            The group, and its task with the counters that rewards may read.

        Raises:
            ConservationError: The attempt is open in the ledger already.
            PipelineError: There is no prompt, or the ledger's line could not be written.
        """
        queued = self.queue.pop()
        task = self.queue.stream.task(queued.prompt)
        group = InFlightGroup(
            key=GroupKey(queued.epoch, queued.prompt, self.ledger.next_attempt(queued.epoch, queued.prompt)),
            sequence_number=queued.sequence_number,
            version=self.pushed_version,
            retries=queued.retries,
            started_at=now,
            environment=task.env,
            replacements=queued.replacements,
        )
        self.ledger.issued(group.key, group.version)
        self._rolling[group.sequence_number] = group
        self.dispatched += 1
        self.notify()
        return group, self.method.with_run_facts(task, queued.prompt, self.version)

    def group_judged(self, group: InFlightGroup, meta: GroupMeta, now: float, stats: Mapping[str, float]) -> None:
        """Give a group's figures to the depth controller and to `on_judged`. Call it before `finish_group`.

        Args:
            group: The group, still rolling.
            meta: Its metadata with the final verdict: that of all filters.
            now: Event loop time in seconds.
            stats: What `Rollout.engine_stats` returns.
        """
        self.on_judged(meta)
        latency_s = now - group.started_at
        self.depth.group_finished(meta.verdict.keep, latency_s, len(self._rolling) - 1, EngineLoad.from_stats(stats))

    def finish_group(
        self, group: InFlightGroup, meta: GroupMeta | None, payload: Any = None, failure: str | None = None
    ) -> GroupState:
        """Move a rolling group on: BUFFERED, FILTERED, REQUEUED, or FAILED for good.

        Args:
            group: The group.
            meta: Its metadata with the final verdict; None if it failed before it was judged.
            payload: Reference to its trajectories.
            failure: Code of the fault, if infrastructure or user code failed.

        Raises:
            ConservationError: The group does not roll, or is not open in the ledger.
            PipelineError: It has neither metadata nor a failure, or the ledger's line could not be written.
        """
        if self._rolling.pop(group.sequence_number, None) is None:
            raise ConservationError(
                f"Group {group.key} ended, but it does not roll: it would be counted twice. Resume from the last"
                " checkpoint and report this."
            )
        if failure is not None:
            if self._is_retried(group, failure):
                # A suspended job costs its groups calls, which says nothing of the prompt.
                state = self._requeue(group, failure, counts_as_retry=failure != SUSPENDED)
            else:
                state = self._end(group, GroupState.FAILED, None, reason=failure)
        elif meta is None:
            raise PipelineError(f"Group {group.key} ended without metadata and without a failure. This is a bug.")
        elif meta.verdict.keep:
            accepted = AcceptedGroup(group, BatchItem(meta, payload))
            bisect.insort(self._buffered, accepted, key=_training_order)
            state = GroupState.BUFFERED
        else:
            self.method.group_ended(group.sequence_number, meta)
            self.queue.add_replacement(group)
            state = self._end(group, GroupState.FILTERED, meta, reason=meta.verdict.reason)
        self.notify()
        return state

    def take_batch(self, decision: BatchDecision) -> list[BatchItem]:
        """Carry a decision out: queue the surplus again and complete the current batch.

        Returns:
            The groups that complete the batch, without the parts that were taken before.

        Raises:
            PipelineError: A group would be trained beyond max_staleness, which is a bug in the gate; or a line of the
                ledger could not be written.
            ConservationError: A surplus group is not open in the ledger.
        """
        self._requeue_buffered(decision.drop, "surplus")
        self.batch_closed = True
        return self._move_to_batch(decision.train)

    def take_next_part(self) -> list[BatchItem]:
        """Move the buffered groups that are due first to the current batch. Only if `can_accumulate_part()`.

        Raises:
            PipelineError: As in `take_batch`.
        """
        part = self._buffered[: self.early_accumulation.part_groups]
        self.accumulating = True
        return self._move_to_batch([group.sequence_number for group, _ in part])

    def part_accumulated(self, seconds: float) -> None:
        """Record that the learner has made the gradients of the latest part, in `seconds`."""
        self.accumulating = False
        self.timing.part_accumulated(seconds)
        self.notify()

    def step_started(self, now: float) -> None:
        """Record that the learner trains the current batch. Until `step_ended` there is no consistent snapshot.

        Args:
            now: Event loop time in seconds.
        """
        self.stepping = True
        self.timing.step_started(now)

    def step_ended(self, report: StepReport) -> None:
        """End the step and the current batch: TRAINED, or FAILED if no gradient of the step was finite.

        A group whose gradient is not finite fails for good: another attempt would only repeat it.

        Raises:
            ConservationError: A group of the batch is not open in the ledger.
            PipelineError: A line of the ledger could not be written.
        """
        batch = self._current_batch
        self._current_batch = []
        self.batch_closed = False
        self.stepping = False
        for group, item in batch:
            if report.finite:
                self._end(group, GroupState.TRAINED, item.meta, step=self.version)
                self.method.group_ended(group.sequence_number, item.meta)
            else:
                reason = "nonfinite_gradient"
                self._end(group, GroupState.FAILED, item.meta, reason=reason)
                self._on_dropped(GroupState.FAILED, item.meta, reason)
        if report.finite:
            self.method.batch_trained()
            # In dispatch order and only at this boundary: with a staleness of 0 the curriculum must not depend on which
            # group ended first.
            self.queue.stream.learned([outcome for _, outcome in sorted(self._outcomes)])
            self._outcomes = []
            self.previous_version = self.version
            self.version = report.version
            self.weights_must_differ = self.weights_must_differ or report.must_change_weights
        else:
            self.timing.accumulated_s = 0.0  # The parts went with the batch.
        self.notify()

    def push_finished(self) -> None:
        """Record that the engines have the learner's weights, and dispatch again."""
        self.pushed_version = self.version
        self.weights_must_differ = False
        self.draining = False
        self.notify()

    def start_draining(self) -> None:
        """Dispatch nothing until the next push."""
        self.draining = True

    def stop(self) -> None:
        """Dispatch nothing any more: the run was asked to stop."""
        self.stopping = True

    def abandon(self) -> list[int]:
        """End the run: queue the prompts of all groups that are not trained again.

        Returns:
            Sequence numbers of the groups that were rolling, for the caller to cancel.

        Raises:
            ConservationError: As in `step_ended`.
            PipelineError: As in `step_ended`.
        """
        self._requeue_buffered([group.sequence_number for group, _ in self._buffered], END_OF_RUN)
        rolling = sorted(self._rolling)
        for number in rolling:
            self._requeue(self._rolling.pop(number), END_OF_RUN, counts_as_retry=False)
        self.notify()
        return rolling

    # --- checkpoints

    def snapshot(self) -> SchedulerSnapshot:
        """Return the state as an immutable copy. A background writer may keep it as long as it likes.

        Raises:
            PipelineError: The learner steps or accumulates, so its state belongs to no version.
            ConservationError: The books do not add up.
        """
        if self.learner_is_busy:
            raise PipelineError(
                f"There is no snapshot in the middle of the step on version {self.version}. This is a bug in the loop."
            )
        self.check()
        return SchedulerSnapshot(
            version=self.version,
            previous_version=self.previous_version,
            rolling=tuple(self._rolling.values()),
            accepted=(*self._current_batch, *self._buffered),
            queue=tuple(self.queue.waiting),
            last_sequence_number=self.queue.last_place,
            outcomes=tuple(self._outcomes),
            prompts_json=json.dumps(self.queue.stream.state()),
            method_json=json.dumps(self.method.state()),
            ledger_mark=self.ledger.mark(),
        )

    def restore(self, snapshot: SchedulerSnapshot) -> None:
        """Continue from a snapshot; what the ledger says after it never happened. Only in a new scheduler.

        The engines' version stays 0: the caller pushes next, which sets it.

        Raises:
            CheckpointDamaged: The ledger is not that of the snapshot.
            ConfigError: The order of the prompts is another one.
            PipelineError: The ledger cannot be written.
        """
        self.version = snapshot.version
        self.previous_version = snapshot.previous_version
        self.queue.stream.restore(json.loads(snapshot.prompts_json))
        self.queue.restore(snapshot.queue, snapshot.last_sequence_number)
        self.method.restore(json.loads(snapshot.method_json))
        self._outcomes = list(snapshot.outcomes)
        open_groups = [*snapshot.rolling, *(group for group, _ in snapshot.accepted)]
        self.ledger.rolled_back(snapshot.ledger_mark, [group.key for group in open_groups])
        self.dispatched = len(open_groups)
        for group in snapshot.rolling:
            self._requeue(group, "resume", counts_as_retry=False)
        self._buffered = sorted(snapshot.accepted, key=_training_order)

    def start_over(self) -> None:
        """Begin a run that has a ledger but no checkpoint: whatever the ledger says never happened.

        Raises:
            PipelineError: The ledger cannot be written.
        """
        self.ledger.rolled_back(BEGINNING, [])

    def check(self) -> None:
        """Compare the number of dispatched groups with where they are, and the groups under way with the ledger.

        Raises:
            ConservationError: A group was lost or counted twice.
        """
        ended = self.ended.total()
        if self.slots_taken + ended != self.dispatched:
            raise ConservationError(
                f"{self.dispatched} groups were dispatched, but {ended} ended ({_counts(self.ended)}) and"
                f" {self.slots_taken} are under way ({len(self._rolling)} rolling, {len(self._buffered)} buffered,"
                f" {len(self._current_batch)} training). Resume from the last checkpoint and report this."
            )
        under_way = [*self._rolling.values(), *(group for group, _ in (*self._buffered, *self._current_batch))]
        self.ledger.check_open(group.key for group in under_way)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the step's row: what the depth controller and the prompt stream have learned."""
        return self.depth.metrics() | self.queue.stream.facts()

    # --- waiting

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` returns True. It is evaluated after every transition, without polling."""
        await self._changed.until(condition)

    def notify(self) -> None:
        """Wake everyone in `wait_until`, for example because something outside of the scheduler has changed."""
        self._changed.notify()

    # --- internals

    def _due_versions_of_rolling(self) -> Iterable[int]:
        return map(self.rule.due_version, self._rolling.values())

    def _waits_for_gate(self) -> bool:
        """Return True if the buffered groups fill the batch, and only the gate keeps the learner from training it."""
        return not self.batch_closed and self._batch_can_be_full() and not self.gate_is_open()

    def _batch_can_be_full(self) -> bool:
        return self._startup_fill_reached() and len(self._buffered) >= self.places_left

    def _startup_fill_reached(self) -> bool:
        """Return True once pipeline.fill_batches batches of accepted groups were there, or the first step was made.

        A run of fewer batches waits for those that it trains.
        """
        fill_batches = self._settings.pipeline.fill_batches
        if fill_batches == 1 or self.version > 0:
            return True
        batches = min(fill_batches, math.ceil(self._settings.train.max_steps / self.rule.updates_per_batch))
        return len(self._buffered) + len(self._current_batch) >= batches * self.rule.batch_groups

    def _max_rolling(self) -> float:
        return self._settings.rollout.vllm_generate_batch_size or math.inf

    def _groups_until_end(self) -> int:
        """Return how many groups the remaining steps can use."""
        remaining_batches = self.rule.batches_between(self.version, self._settings.train.max_steps)
        return remaining_batches * self.rule.batch_groups

    def _move_to_batch(self, numbers: Collection[int]) -> list[BatchItem]:
        """Move buffered groups, named by sequence number, to the current batch, and return them.

        Raises:
            PipelineError: A group would be trained beyond max_staleness.
        """
        moved = self._remove_buffered(numbers)
        self._current_batch += moved
        max_staleness = self._settings.max_staleness
        last_update = self.version + self.rule.updates_per_batch - 1
        for group, item in moved:
            oldest = item.meta.oldest_version
            if oldest is not None and last_update - oldest > max_staleness:
                raise PipelineError(
                    f"Group {group.key} has tokens of version {oldest}; the batch at version {self.version}, of"
                    f" {self.rule.updates_per_batch} updates, would exceed max_staleness = {max_staleness}. This is a"
                    " bug in the gate."
                )
        self.notify()
        return [item for _, item in moved]

    def _remove_buffered(self, numbers: Collection[int]) -> list[AcceptedGroup]:
        """Take groups out of the buffer and return them in training order."""
        wanted = set(numbers)
        removed = [accepted for accepted in self._buffered if accepted.group.sequence_number in wanted]
        self._buffered = [accepted for accepted in self._buffered if accepted.group.sequence_number not in wanted]
        return removed

    def _end(self, group: InFlightGroup, state: GroupState, meta: GroupMeta | None, **details: Any) -> GroupState:
        """End a group that does not come back, and remember its outcome for the prompt stream.

        Args:
            group: The group.
            state: How it ended.
            meta: Its metadata; None if it failed. Then it has no samples.
            details: What the ledger's line says besides: the step or the reason.
        """
        self.ledger.ended(state, group.key, **details)
        correct = [] if meta is None else meta.correct
        outcome = PromptOutcome(group.key.prompt, sum(correct), len(correct))
        self._outcomes.append((group.sequence_number, outcome))
        self.ended[state] += 1
        return state

    def _requeue(self, group: InFlightGroup, reason: str, *, counts_as_retry: bool) -> GroupState:
        """End this attempt and dispatch its prompt again, at its place in line."""
        self.ledger.ended(GroupState.REQUEUED, group.key, reason=reason)
        self.queue.add_again(group, counts_as_retry=counts_as_retry)
        self.ended[GroupState.REQUEUED] += 1
        return GroupState.REQUEUED

    def _requeue_buffered(self, numbers: Collection[int], reason: str) -> None:
        """Drop accepted groups; their prompts keep their place in line, and the attempt does not count as a retry."""
        for group, item in self._remove_buffered(numbers):
            state = self._requeue(group, reason, counts_as_retry=False)
            self.method.forget_group(item.meta)
            self._on_dropped(state, item.meta, reason)
        self.notify()


def _training_order(accepted: AcceptedGroup) -> tuple[int, int]:
    return accepted.group.training_order


def _counts(ended: Counter[GroupState]) -> str:
    return ", ".join(f"{n} {state.value}" for state, n in ended.items()) or "none"
