"""The values that the scheduler works on, all of them immutable, so that a snapshot can share them.

A checkpoint holds them field by field: who adds or renames a field raises pipeline/checkpoints/manifest.py, FORMAT, so
that a resume from an older checkpoint is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ...types import BatchItem, GroupKey, PromptOutcome
from ..ledger.lines import Mark


@dataclass(frozen=True, slots=True)
class InFlightGroup:
    """One attempt of a prompt, from its dispatch until it is trained, dropped, or queued again.

    Attributes:
        key: Identity of the attempt: epoch, prompt, attempt number.
        sequence_number: The prompt's place in line, from 1. A requeued prompt keeps it, so that with a staleness of 0
            a run with faults trains the batches of a run without.
        version: Policy version of the engines at this dispatch. No token of the group is older.
        retries: Earlier attempts that count towards MAX_RETRIES.
        started_at: Time of the dispatch, in event loop seconds.
        environment: Name of the environment.
        replacements: Length of the chain of filtered groups that this one replaces; 0 if it replaces none.
    """

    key: GroupKey
    sequence_number: int
    version: int
    retries: int = 0
    started_at: float = 0.0
    environment: str = ""
    replacements: int = 0

    @property
    def training_order(self) -> tuple[int, int]:
        """Sort key of the order in which buffered groups are trained: first dispatched first.

        The version comes first because a requeued prompt keeps its place in line but gets a later due version.
        """
        return self.version, self.sequence_number


class AcceptedGroup(NamedTuple):
    """A group that passed the filters: the attempt, and what the learner trains."""

    group: InFlightGroup
    item: BatchItem


@dataclass(frozen=True, slots=True)
class QueuedPrompt:
    """A prompt that is dispatched before new ones: requeued after an attempt, or a replacement of a filtered group.

    Attributes:
        epoch: The epoch of the prompt.
        prompt: Index of the prompt in the data set.
        sequence_number: Its place in line.
        retries: Earlier attempts that count towards MAX_RETRIES.
        replacements: As in `InFlightGroup`.
    """

    epoch: int
    prompt: int
    sequence_number: int
    retries: int = 0
    replacements: int = 0


class BatchDecision(NamedTuple):
    """What the learner does next. Groups are named by sequence number, in training order.

    Attributes:
        train: The groups that complete the current batch.
        drop: Surplus: accepted groups that no order of steps can train in time. Their prompts are queued again.
    """

    train: tuple[int, ...]
    drop: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SchedulerSnapshot:
    """The scheduler's state as a checkpoint keeps it. Shares nothing with the running state that could still change.

    A background task stores it seconds after it was taken; tests/unit/pipeline/test_scheduler.py checks that every
    field is of an immutable type. After a resume the accepted groups are buffered, and the prompts of the rolling
    groups are dispatched again.

    Attributes:
        version: Updates behind the learner's weights.
        previous_version: The version before the latest batch. A resume finds with it which export was due.
        rolling: Groups that were on engines.
        accepted: The current batch, then the buffered groups: copies of their metadata, and payload references.
        queue: Prompts to dispatch before new ones, by sequence number.
        last_sequence_number: The number that was given last.
        outcomes: Groups that ended since the last trained batch, with their sequence numbers.
        prompts_json: State of the prompt stream as JSON text: the stream's own state holds live tables.
        method_json: Counters and other state of the method as JSON text, for the same reason.
        ledger_mark: The end of the ledger's lines that belong to this state.
    """

    version: int
    previous_version: int
    rolling: tuple[InFlightGroup, ...]
    accepted: tuple[AcceptedGroup, ...]
    queue: tuple[QueuedPrompt, ...]
    last_sequence_number: int
    outcomes: tuple[tuple[int, PromptOutcome], ...]
    prompts_json: str
    method_json: str
    ledger_mark: Mark
