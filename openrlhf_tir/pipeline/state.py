"""RunState: everything that a run holds, and the only one that moves it. No awaits: between two of its calls the state
is consistent.

    issue ----> ROLLING --settle--> BUFFERED --take--> TRAINING (the batch in hand) --trained--> TRAINED
                   |                   |  take_part        |
                   +-------------------+-------------------+--> FILTERED, FAILED, REQUEUED

The batch in hand comes in one piece, or grows by parts whose gradients the learner accumulates (budget.py, *early*).

A group's slot (budget), its line (ledger), its flight and its place (rolling, replay or the batch in hand) change in
one call, so a checkpoint may cut between any two. `check` compares all four.
"""

from __future__ import annotations

import copy
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..config import Config
from ..errors import SUSPENDED, PipelineError
from ..ports import Prompts
from ..replay.buffer import ReplayBuffer
from ..replay.ledger import Ledger
from ..replay.lines import BEGINNING, Mark
from ..types import BatchItem, GroupKey, GroupMeta, GroupState, StepReport, Task
from .budget import Budget, gate_open, may_take_early
from .depth import depth_for
from .method_state import MethodState
from .signal import Signal
from .source import Flight, Source

EndListener = Callable[[GroupState, GroupMeta | None, str | None], None]
"""Told of every rolled group: where it went, what is known of it, and the fault's or requeue's reason."""
LeaveListener = Callable[[GroupState, GroupMeta, str], None]
"""Told of every accepted group that leaves untrained, after it was told of as buffered: where it went, what is known of
it, and why."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The state as a checkpoint keeps it. It shares nothing with the running state that could still change.

    A background task writes it seconds later. Every field is of an immutable type (a house test checks that), so
    handing over a live table would not pass: whatever the loop does meanwhile, the cut is stored and nothing younger.

    Attributes:
        version: Updates behind the learner's weights.
        ledger_lines: Lines of the ledger that belong to this state.
        facts_json: Everything else that the controller keeps, serialised when the cut was taken.
        accepted: Buffered groups and those of the batch in hand: copies of their metadata, and payload references.
    """

    version: int
    ledger_lines: int
    facts_json: str
    accepted: tuple[tuple[Flight, BatchItem], ...]

    @property
    def facts(self) -> dict[str, Any]:
        """A new dictionary of the facts, which the caller may change."""
        facts: dict[str, Any] = json.loads(self.facts_json)
        return facts


class RunState:
    def __init__(
        self,
        cfg: Config,
        prompts: Prompts,
        ledger: Ledger,
        on_end: EndListener = lambda *_: None,
        on_leave: LeaveListener = lambda *_: None,
    ) -> None:
        self.B, self.S, self.max_steps = cfg.rollout.batch_size, cfg.max_staleness, cfg.train.max_steps
        self.max_reissues, self.push_every = cfg.train.max_reissues, cfg.pipeline.push_every
        self.k, self.ahead = cfg.updates_per_batch, cfg.batches_ahead
        """Updates of a batch, and how many batches ahead of the learner a group may be issued (W in budget.py)."""
        self.fill_batches = cfg.pipeline.fill_batches
        self.world_size = cfg.actor.world_size
        self.ledger, self.on_end, self.on_leave = ledger, on_end, on_leave
        self.signal = Signal()
        self.depth = depth_for(cfg)
        self.budget = Budget(batch_groups=self.B, max_staleness=self.ahead, depth=self.depth, signal=self.signal)
        self.source = Source(prompts, ledger)
        self.replay = ReplayBuffer()
        self.method = MethodState(cfg)
        self.flights: dict[int, Flight] = {}
        """All groups that are issued and have not ended, by dispatch number: those rolling, in replay and in hand."""
        self.rolling: dict[int, Flight] = {}
        self.at_once = cfg.rollout.vllm_generate_batch_size or math.inf
        self.in_hand: list[tuple[Flight, BatchItem]] = []
        """The batch that was taken from replay, or its first parts, until the learner's step on it has ended."""
        self.whole = False
        """Nothing more comes to the batch in hand."""
        self.part = part_groups(cfg)
        """Groups that are taken early at once; 0: none are."""
        self.stepping = False
        """The learner is in the middle of a step: its weights are of no version, so there is nothing to save."""
        self.accumulating = False
        """The learner makes the gradients of a part of the batch in hand; its weights are those of the version."""
        self.step_began = 0.0
        """When the latest step began, in the event loop's seconds."""
        self.period_s: float | None = None
        """How long after the one before it that was; None: there was none."""
        self.early_s = 0.0
        """Seconds that the learner has spent on parts of the batch in hand."""
        self.step_s: float | None = None
        """What a step and its push take, a moving mean; None before the first. With parts that were accumulated before
        it is the rest that takes so long: all of it is `work_s`."""
        self.work_s: float | None = None
        """What all of a batch and its push take of the learner's time, a moving mean; None before the first."""
        self.moved = False
        """An update since the last push must have changed the weights."""
        self.version, self.pushed = 0, 0
        """Updates behind the learner's weights, and behind those of the engines."""
        self.before = 0
        """The version before the latest batch."""
        self.on_judged: Callable[[GroupMeta], None] = lambda meta: None
        """Told of every group that was rolled and judged, kept or not."""
        self.requeued: Counter[str] = Counter()
        """Reason -> attempts that ended so."""
        self._tell_the_end_is_near()

    # --- a group's way

    def issue(self, now: float) -> tuple[Flight, Task]:
        """The next prompt, rolling from now on; only when the source is ready. `now` in the event loop's seconds."""
        flight, task = self.source.issue(self.pushed, now)
        self.flights[flight.dispatch] = self.rolling[flight.dispatch] = flight
        self.budget.enter()
        return flight, self.method.placed(task, flight.key.prompt, self.version)

    def pause(self) -> None:
        """Issue nothing until the engines have the next weights."""
        self.budget.pause()

    def measured(self, flight: Flight, meta: GroupMeta, now: float, engines: Mapping[str, float]) -> None:
        """A group was judged: what the depth controller learns from it. Before `settle`."""
        self.on_judged(meta)
        self.depth.finished(meta.verdict.keep, now - flight.started_at, len(self.rolling) - 1, engines)

    def settles_in_turn(self, flight: Flight, meta: GroupMeta | None, failed: str | None) -> bool:
        """Return True if the end of this group must wait for the ends of all groups dispatched before it.

        Without staleness a run must not depend on which group ends first. Two decisions look at other groups: the
        verdict of length_balance, and which prompt takes the place of a dropped one where environments have shares.
        They are taken in the order of dispatch. Everything else that a group's end decides counts from the next batch
        on, or is the same in any order, so no other run waits.
        """
        if self.ahead > 0:
            return False
        if failed is not None or meta is None:
            return failed != SUSPENDED and self.source.replaces is not False and flight.reissues >= self.max_reissues
        replaces = self.source.replaces is not False
        if meta.verdict.keep:
            # Where a bound on rolling groups, and not the batch, decides when the next prompt is issued, an accepted
            # group makes room for one as well.
            return self.method.looks_at_others(meta) or (replaces and self.at_once < self.B)
        return replaces

    def is_turn_of(self, flight: Flight) -> bool:
        """Return True if every group dispatched before this one has ended."""
        retry = self.source.oldest_retry
        return min(self.rolling) == flight.dispatch and (retry is None or retry > flight.dispatch)

    def settle(self, flight: Flight, meta: GroupMeta | None, payload: Any, failed: str | None) -> GroupState:
        """A rolled group's one transition: buffered, filtered, requeued, or failed for good. `failed` names the fault,
        if there was one."""
        if failed is not None:
            counts = failed != SUSPENDED
            again = not counts or flight.reissues < self.max_reissues
            end = (
                self._requeue(flight, failed, counts=counts)
                if again
                else self._end(flight, GroupState.FAILED, None, reason=failed)
            )
        else:
            assert meta is not None, "what did not fail was judged"
            end = self._judged(flight, meta, payload)
        self.on_end(end, meta, failed)
        return end

    def _judged(self, flight: Flight, meta: GroupMeta, payload: Any) -> GroupState:
        if not meta.verdict.keep:
            self.method.ended(flight.dispatch, meta)
            self.source.dropped(flight)
            return self._end(flight, GroupState.FILTERED, meta, reason=meta.verdict.reason)
        del self.rolling[flight.dispatch]
        self.replay.add(flight.place, BatchItem(meta, payload))
        self.budget.move(GroupState.ROLLING, GroupState.BUFFERED)
        return GroupState.BUFFERED

    def requeue(self, dispatches: Iterable[int], reason: str) -> None:
        """Groups that roll or are buffered give up their slots; the prompts keep theirs, at no cost in reissues."""
        for dispatch in dispatches:
            accepted = self.replay.get(dispatch)
            self._requeue(self.flights[dispatch], reason, counts=False)
            if accepted is None:
                self.on_end(GroupState.REQUEUED, None, reason)
            else:
                self.method.forgets(accepted.meta)
                self.on_leave(GroupState.REQUEUED, accepted.meta, reason)

    def take(self) -> list[BatchItem]:
        """The oldest dispatched of replay, or as many as there are, make the batch in hand whole: those that were not
        in it before. Raises PipelineError when one is beyond S."""
        self.whole, self.budget.early = True, 0
        return self._into_hand(min(self.places, len(self.replay)))

    def take_part(self) -> list[BatchItem]:
        """The groups of replay that are due first go into the batch in hand, which still waits for others; only when
        `part_ready`. Raises PipelineError as `take` does."""
        part = self._into_hand(self.part)
        self.accumulating, self.budget.early = True, len(self.in_hand)
        return part

    def _into_hand(self, n: int) -> list[BatchItem]:
        taken = self.replay.take(n)
        self.in_hand += [(self.flights[dispatch], item) for dispatch, item in taken]
        self.budget.move(GroupState.BUFFERED, GroupState.TRAINING, len(taken))
        for _, item in taken:
            oldest = item.meta.oldest_version
            if oldest is not None and self.version + self.k - 1 - oldest > self.S:
                raise PipelineError(
                    f"Group {item.meta.key} has tokens of version {oldest} at version {self.version},"
                    f" which {self.k} updates begin at: beyond S = {self.S}. A bug in the gate."
                )
        return [item for _, item in taken]

    def begin_step(self, now: float = 0.0) -> None:
        """The learner trains the batch in hand; no checkpoint has it from here on. `now` in the loop's seconds."""
        self.period_s = None if self.step_s is None else now - self.step_began
        self.stepping, self.step_began = True, now

    def accumulated(self, seconds: float) -> None:
        """The learner has spent so long on the part that was taken last."""
        self.accumulating = False
        self.early_s += seconds
        self.signal.notify()

    def stepped(self, seconds: float) -> None:
        """A step and its push have taken so long, without the parts that were accumulated before."""
        work, self.early_s = self.early_s + seconds, 0.0
        self.step_s = seconds if self.step_s is None else 0.5 * (self.step_s + seconds)
        self.work_s = work if self.work_s is None else 0.5 * (self.work_s + work)
        self.depth.stepped(work, self.period_s)

    def trained(self, report: StepReport) -> None:
        """The step on the batch in hand has ended; the learner's weights are a new version, the engines' not yet."""
        for flight, item in self._batch_ended(GroupState.TRAINED):
            self.ledger.ended(GroupState.TRAINED, flight.key, step=self.version)
            self.method.ended(flight.dispatch, item.meta)
            self.source.ended(flight, item.meta)
        self.method.batch_trained()
        self.source.batch_trained()
        self.before, self.version = self.version, report.version
        self.moved = self.moved or report.must_change_weights
        self.budget.unpushed = self.unpushed
        self._tell_the_end_is_near()

    def not_trained(self, reason: str) -> None:
        """The step on the batch in hand changed nothing: its groups fail for good, the version stays. (Issued again
        they would do the same.)"""
        self.early_s = 0.0
        for flight, item in self._batch_ended(GroupState.FAILED):
            self.ledger.ended(GroupState.FAILED, flight.key, reason=reason)
            self.source.ended(flight, item.meta)
            self.on_leave(GroupState.FAILED, item.meta, reason)

    def _batch_ended(self, end: GroupState) -> list[tuple[Flight, BatchItem]]:
        batch, self.in_hand, self.whole, self.stepping = self.in_hand, [], False, False
        for flight, _ in batch:
            del self.flights[flight.dispatch]
        self.budget.move(GroupState.TRAINING, end, len(batch))
        return batch

    def push_done(self) -> None:
        """The engines have the learner's weights."""
        self.pushed, self.moved = self.version, False
        self.budget.unpushed = 0
        self.budget.resume()

    def _end(self, flight: Flight, end: GroupState, meta: GroupMeta | None, reason: str) -> GroupState:
        self._leave(flight, end)
        self.source.ended(flight, meta)
        self.ledger.ended(end, flight.key, reason=reason)
        return end

    def _requeue(self, flight: Flight, reason: str, *, counts: bool) -> GroupState:
        self._leave(flight, GroupState.REQUEUED)
        self.source.requeue(flight, reason, counts=counts)
        self.requeued[reason] += 1
        return GroupState.REQUEUED

    def _leave(self, flight: Flight, end: GroupState) -> None:
        """Out of the place where it is, and its slot with it."""
        del self.flights[flight.dispatch]
        if self.rolling.pop(flight.dispatch, None):
            self.budget.move(GroupState.ROLLING, end)
        else:
            self.replay.remove(flight.dispatch)
            self.budget.move(GroupState.BUFFERED, end)

    # --- what may happen next

    def may_issue(self) -> bool:
        if len(self.rolling) >= self.at_once or not self.budget.admits() or not self.source.ready:
            return False
        there = len(self.replay) + self.budget.early
        return not (self.waits_for_gate() and self.depth.holds_at_gate(len(self.rolling), there))

    def deadline(self, flight: Flight) -> int:
        """The last version at which the batch that trains it may begin."""
        return flight.version + self.ahead * self.k

    @property
    def unpushed(self) -> int:
        """Batches that were trained since the engines got weights; of their updates some may have been left out."""
        return -((self.pushed - self.version) // self.k)

    def push_due(self, *, evaluating: bool, owed: bool) -> bool:
        """Every pipeline.push_every batches; an evaluation that is `owed` and the end need the last weights, whatever
        the count. While one is open (`evaluating`), only when staleness has no room for another batch."""
        every = self.ahead + 1 if evaluating else self.push_every
        return owed or self.version >= self.max_steps or self.unpushed >= every

    def due(self, every: int) -> bool:
        """Whether what happens every so many updates happens now: after the batch that reached or passed the number."""
        return every > 0 and self.version // every > self.before // every

    def gate_open(self) -> bool:
        """Whether the next step leaves every remaining group trainable within S (budget.py)."""
        buffered = [self.deadline(self.flights[d]) for d in self.replay.dispatches()]
        rolling = map(self.deadline, self.rolling.values())
        return gate_open(self.version, self.B, buffered, rolling, self.depth.possible, self.k, self.places)

    def waits_for_gate(self) -> bool:
        """A batch is ready and none is stepped on, but the gate is shut. It opens at the latest when nothing rolls."""
        return self.filled and not self.whole and len(self.replay) >= self.places and not self.gate_open()

    @property
    def places(self) -> int:
        """Places that the batch in hand has left."""
        return self.B - len(self.in_hand)

    def batch_ready(self) -> bool:
        """Whether replay fills the batch in hand, as far as it ever will, and before the first step all that is to be
        rolled until then."""
        return self.exhausted or (self.filled and len(self.replay) >= self.places)

    @property
    def filled(self) -> bool:
        """Return True once `pipeline.fill_batches` batches of accepted groups are there, or the first step was made.

        A run of fewer batches waits for those that it trains.
        """
        if self.fill_batches == 1 or self.version > 0:
            return True
        batches = min(self.fill_batches, math.ceil(self.max_steps / self.k))
        return len(self.replay) + len(self.in_hand) >= batches * self.B

    def step_due(self) -> bool:
        """Whether the batch can be made whole now and stepped on."""
        return self.batch_ready() and self.gate_open()

    def part_ready(self) -> bool:
        """Whether a part of the batch may be taken early (budget.py). One group at least stays for the step, which the
        end of the prompts may make the last. None is begun in a run that is asked to stop."""
        if (
            not self.part
            or not self.filled
            or self.budget.paused
            or len(self.replay) <= self.part
            or self.places <= self.part
        ):
            return False
        first = self.replay.dispatches()[: self.part]
        rolling = map(self.deadline, self.rolling.values())
        due = [self.deadline(self.flights[d]) for d in first]
        return may_take_early(self.version, self.B, due, rolling, self.places - self.part, self.k)

    @property
    def learning(self) -> bool:
        """The learner is at work, so that nothing else can be asked of it."""
        return self.stepping or self.accumulating

    @property
    def exhausted(self) -> bool:
        """No prompt left to issue, and none rolling that could fail and come back."""
        return not self.source.ready and not self.rolling

    def _tell_the_end_is_near(self) -> None:
        self.budget.still_needed = -((self.version - self.max_steps) // self.k) * self.B

    # --- law and order

    def check(self) -> None:
        """The law of conservation. Raises ConservationError with what does not add up."""
        self.budget.check(rolling=len(self.rolling), buffered=len(self.replay), training=len(self.in_hand))
        self.ledger.check_open(f.key for f in self.flights.values())

    @property
    def progress(self) -> tuple[int, int]:
        """What a checkpoint taken now would hold: (updates, attempts that ended)."""
        return self.version, self.ledger.ends

    def cut(self) -> Cut:
        """The state as a checkpoint keeps it. What is buffered or in hand will be buffered, and its gradients, where
        they were begun, are made anew; what rolls will be issued again.

        Raises PipelineError in the middle of a step, ConservationError when a group is missing.
        """
        if self.learning:
            raise PipelineError(
                f"The learner is in the middle of the step on version {self.version}, of which there is nothing to"
                " save. A bug in the loop."
            )
        self.check()
        facts = {
            "version": self.version,
            "max_staleness": self.S,
            "updates_per_batch": self.k,
            "batch_size": self.B,
            "world_size": self.world_size,
            "ledger_lines": self.ledger.lines,
            "ledger": asdict(self.ledger.mark()),
            "source": self.source.state(),
            "method": self.method.state(),
            "rolling": [asdict(f) for f in self.rolling.values()],
        }
        accepted = self.in_hand + [(self.flights[dispatch], item) for dispatch, item in self.replay.items()]
        return Cut(
            self.version,
            self.ledger.lines,
            json.dumps(facts),
            tuple((flight, BatchItem(copy.deepcopy(item.meta), item.payload)) for flight, item in accepted),
        )

    def begin_anew(self) -> None:
        """No checkpoint was committed: whatever the ledger says happened never did."""
        self.ledger.rolled_back(BEGINNING, [])

    def finished(self) -> None:
        """The run is over, and all of it is in the ledger."""
        self.ledger.finished()

    def restore(self, facts: dict[str, Any], version: int, accepted: list[tuple[Flight, BatchItem]]) -> None:
        """The inverse of `cut`, in a new state. Events after it never happened; what rolled is queued anew."""
        self.before = self.version = version
        self.source.restore(facts["source"])
        if "method" in facts:  # not in checkpoints of older versions
            self.method.restore(facts["method"])
        rolled = [Flight(**{**f, "key": GroupKey(*f["key"])}) for f in facts["rolling"]]
        self.ledger.rolled_back(Mark.of_json(facts["ledger"]), [f.key for f in rolled] + [f.key for f, _ in accepted])
        for flight in rolled:
            self.source.requeue(flight, "resume", counts=False)
        for flight, item in accepted:
            self.flights[flight.dispatch] = flight
            self.replay.add(flight.place, item)
            self.budget.enter(GroupState.BUFFERED)
        self._tell_the_end_is_near()


PARTS = 16
"""Parts that a batch is taken early in, at most: what the step then does beside the groups that kept it waiting is less
than a sixteenth of it, and with some hundred samples a part fills micro batches of some ranks."""


def part_groups(cfg: Config) -> int:
    """Groups of a part that is taken early, with which each learner rank has a trajectory at least; 0: none is."""
    if cfg.pipeline.early_accumulation == "off":
        return 0
    of_ranks = math.ceil(cfg.shards / cfg.rollout.n_samples_per_prompt)
    return max(math.ceil(cfg.rollout.batch_size / PARTS), of_ranks)
