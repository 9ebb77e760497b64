"""The domain, from which a newcomer learns the system. numpy only: these cross Ray and land in its object store.

    Task -> (run_episode x n) -> Trajectory -> Group -> (filters, replay) -> TrainBatch -> learner

Shapes: T tokens of one response, P prompt tokens, G samples of a group, B groups of a batch.
A token's *source* says who produced it; the loss mask is derived from it and is never stored, so a mask that trains on
tool output cannot be expressed. `version` is the number of learner updates behind the weights that sampled a token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

Source = Literal["model", "env"]
ENV_VERSION = -1
"""Version of a token that no policy sampled."""


class GroupKey(NamedTuple):
    """Identity of one issue of one prompt. `prompt` is the row's index in the data set."""

    epoch: int
    prompt: int
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.epoch}/{self.prompt}/{self.attempt}"


class GroupState(StrEnum):
    """Where an issued group is. In a terminal state its attempt is over: its slot is free and the ledger has a line
    that says how it ended."""

    ROLLING = "rolling"
    """A rollout actor has it."""
    BUFFERED = "buffered"
    """Accepted; it waits in replay."""
    TRAINING = "training"
    """It is in the batch in hand, until the learner's step on that has ended."""
    TRAINED = "trained"
    FILTERED = "filtered"
    FAILED = "failed"
    """It failed for good: it was issued again as often as train.max_reissues allows."""
    REQUEUED = "requeued"
    """This attempt has ended, its prompt goes on: it is queued again (after a fault, as surplus, or interrupted)."""


TERMINAL = frozenset({GroupState.TRAINED, GroupState.FILTERED, GroupState.FAILED, GroupState.REQUEUED})
"""The states in which a group ends; the ledger's events are these words."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a run knows when it issues a group. It travels with the task, so that rewards know where they are.

    `update`: learner updates so far, of `max_updates`; `counters`: the run's own, kept in its checkpoints; `prompt`:
    those of this prompt alone."""

    update: int = 0
    max_updates: int = 0
    counters: Mapping[str, float] = field(default_factory=dict)
    prompt: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chat:
    """The messages that a prompt was rendered from, and the schemas of the tools that it names."""

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    of_text: bool = False
    """True if the row's prompt was text, which became the one user message."""


@dataclass(frozen=True, slots=True)
class Task:
    """One problem: rendered prompt text, its label, and the name of its environment."""

    prompt: str
    label: str
    env: str = "python_tir"
    meta: Mapping[str, Any] = field(default_factory=dict)
    run: RunFacts = RunFacts()
    chat: Chat | None = None
    """The conversation, where the model's chat template rendered the prompt."""
    row: str = ""
    """Which row of the data it is, whatever file that is in: data/identity.py."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Every column of the row besides its prompt, as the file has it. Rewards read it here, environments as
    `task["extra"]`, templates as {name}."""


class PromptOutcome(NamedTuple):
    """What a group that ended says of its prompt: `right` of `samples`. None of none where it failed."""

    prompt: int
    right: int
    samples: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """What the engine needs to sample one segment. `max_tokens` counts new tokens. Stop strings stay in the text."""

    max_tokens: int
    stop: tuple[str, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    top_k: int = 0
    """How many of the likeliest tokens are sampled from; 0: all."""
    min_p: float = 0.0
    since: int | None = None
    """Version that sampled the first token of the trajectory which this goes on with; None: it begins here."""


class EngineBounds(NamedTuple):
    """What no request to an engine may exceed."""

    vocab_size: int
    max_model_len: int
    """Tokens of prompt and answer together."""


Finish = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine returns. All arrays [T]; `text` is the decoded tokens, cut right after a matched stop string."""

    token_ids: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    text: str
    finish_reason: Finish
    stop_reason: str | int | None = None
    prompt_logprobs: np.ndarray | None = None
    """[P - 1] float32 log-probs of the prompt's tokens but the first, where they were asked for."""

    @property
    def began(self) -> int | None:
        """Version that sampled the first token; None without one."""
        return int(self.versions[0]) if len(self.versions) else None


class Changes(NamedTuple):
    """A delta push as the learner announces it (weights/delta_file.py)."""

    digest: str
    """The digest of the weights after the push."""
    link: str
    """The digest of the file, chained to the weights before it."""


class Meeting(NamedTuple):
    """Where learner rank 0 and the workers of engines meet for broadcasts of weights (weights/broadcast)."""

    backend: str
    address: str
    port: int
    receivers: int
    """Workers, ranks 1 to this."""
    deadline_s: float
    """Seconds for all to be there, and again for each bucket."""


class Transfer(NamedTuple):
    """What became of a broadcast on one side."""

    digest: str | None = None
    """The digest of all that was sent or received; None where something is missing."""
    nbytes: int = 0
    fault: str | None = None
    """Why something is missing."""
    unusable: bool = False
    """Another push mends nothing here."""


class Canary(NamedTuple):
    """What an engine computes first with new weights, for the learner to compare.

    Attributes:
        prompt_ids: Texts. The engine reports the log-probs of their own tokens (all but the first of each) where it
            can: both sides then score the same tokens.
        max_tokens: Tokens to sample after each text, which proves decoding as well.
        seed: Text i is continued with the seed `seed + i`.
    """

    prompt_ids: list[list[int]]
    max_tokens: int
    seed: int


class ReadBackReport(NamedTuple):
    """The exact proof of a load: what one worker's model, or all workers of an engine, hold against what was sent.

    Attributes:
        tensors: Number of tensors sent.
        differing: Tensors that the model does not hold as they were sent.
        unread: Tensors that could not be read back (quantised layers, fused experts, what a loader transforms); only
            log-probs prove these.
        missing: Linear layers, embeddings and norms that should have been sent a tensor and were not.
        nbytes: Bytes compared.
        seconds: Duration of the comparison.
    """

    tensors: int
    differing: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    nbytes: int = 0
    seconds: float = 0.0

    @property
    def fault(self) -> str | None:
        """What is wrong, in words; None if everything that could be read is right."""
        parts = []
        if self.differing:
            parts.append(f"{len(self.differing)} of {self.tensors} tensors differ ({_first(self.differing)})")
        if self.missing:
            parts.append(f"{len(self.missing)} modules were sent nothing ({_first(self.missing)})")
        return "; ".join(parts) or None


def _first(names: Sequence[str], limit: int = 3) -> str:
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens by one producer.

    token_ids [T] int32; logprobs [T] float32, of the policy that sampled the token, 0.0 where source is "env";
    versions [T] int32, ENV_VERSION where source is "env".
    """

    source: Source
    token_ids: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    text: str = ""

    @classmethod
    def of_model(cls, c: Completion) -> Segment:
        return cls(
            "model",
            np.asarray(c.token_ids, np.int32),
            np.asarray(c.logprobs, np.float32),
            np.asarray(c.versions, np.int32),
            c.text,
        )

    @classmethod
    def of_env(cls, token_ids: Sequence[int], text: str) -> Segment:
        ids = np.asarray(token_ids, np.int32)
        return cls("env", ids, np.zeros(len(ids), np.float32), np.full(len(ids), ENV_VERSION, np.int32), text)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One executed action and the facts the environment told about it."""

    action: str
    observation: str
    outcome: str
    signals: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    reward: float | None = None
    """What the environment gave for it, if anything; `reward.name = "env"` makes it the trajectory's."""
    done: bool = False
    truncated: bool = False
    turn: int | None = None
    """Which of the trajectory's model segments made it, from 0; None where nobody kept count."""


class Change(NamedTuple):
    """One change to the run's counters: `how` is "add", "lowest" or "highest", so their order does not matter."""

    scope: Literal["run", "prompt"]
    name: str
    how: Literal["add", "lowest", "highest"]
    value: float


@dataclass(slots=True)
class Trajectory:
    """One sampled response. `failed` names a fault of infrastructure or of the method's code: such a one has no reward
    and is never trained. `masked` names why a valid one is not trained: it counts in its group's statistics only."""

    index: int
    prompt_ids: np.ndarray
    segments: list[Segment] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str = ""
    stop_reason: str | int | None = None
    failed: str | None = None
    why: str = ""
    """The fault in words, for a person; empty unless it failed."""
    reward: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    masked: str = ""
    changes: list[Change] = field(default_factory=list)
    """What its reward asks the run's counters to be changed by."""
    branches: list[Trajectory] = field(default_factory=list)
    """Other chains of tokens of the same session (engines/session_trace.py): prompt and segments only. Its reward is
    theirs; they are trained with it."""

    @property
    def sequences(self) -> list[Trajectory]:
        """All of its chains of tokens; its own, at whose end the reward is paid, is the last."""
        return [*self.branches, self]

    def _cat(self, name: str, dtype: DTypeLike) -> np.ndarray:
        return np.concatenate([getattr(s, name) for s in self.segments]) if self.segments else np.zeros(0, dtype)

    @property
    def scored(self) -> float:
        """Its reward, which every valid trajectory of a group has once the group is judged. Raises ValueError when
        there is none."""
        if self.reward is None:
            raise ValueError(
                f"Trajectory {self.index} has no reward ({self.failed or 'it was not scored'})."
                " Score it first, or look at valid ones only."
            )
        return self.reward

    @property
    def token_ids(self) -> np.ndarray:
        """[T] int32, the response: model and environment tokens in order."""
        return self._cat("token_ids", np.int32)

    @property
    def logprobs(self) -> np.ndarray:
        """[T] float32."""
        return self._cat("logprobs", np.float32)

    @property
    def versions(self) -> np.ndarray:
        """[T] int32."""
        return self._cat("versions", np.int32)

    @property
    def is_model(self) -> np.ndarray:
        """[T] bool, True where the model produced the token: the loss mask."""
        parts = [np.full(len(s.token_ids), s.source == "model") for s in self.segments]
        return np.concatenate(parts) if parts else np.zeros(0, bool)

    @property
    def turns(self) -> np.ndarray:
        """[T] int, the number of the model segment that a token is in or follows, from 0."""
        count, parts = -1, [np.zeros(0, int)]
        for s in self.segments:
            count += s.source == "model"
            parts.append(np.full(len(s.token_ids), max(count, 0)))
        return np.concatenate(parts)

    def earned(self, weight: float = 1.0) -> np.ndarray:
        """[number of model segments] float64, what the environment gave for the calls of each, times `weight`."""
        out = np.zeros(sum(s.source == "model" for s in self.segments))
        for j, call in enumerate(self.calls):
            out[min(j if call.turn is None else call.turn, len(out) - 1)] += weight * (call.reward or 0.0)
        return out

    @property
    def text(self) -> str:
        return "".join(s.text for s in self.segments)

    @property
    def response_tokens(self) -> int:
        """T: model and environment tokens."""
        return sum(len(s.token_ids) for s in self.segments)

    @property
    def model_tokens(self) -> int:
        """Sampled tokens, those of its branches included."""
        return sum(len(s.token_ids) for t in self.sequences for s in t.segments if s.source == "model")

    @property
    def branch_tokens(self) -> int:
        """Tokens of its branches, their prompts included: what they add to a learner step."""
        return sum(len(t.prompt_ids) + t.response_tokens for t in self.branches)

    @property
    def oldest_version(self) -> int | None:
        versions = [
            int(s.versions.min()) for t in self.sequences for s in t.segments if s.source == "model" and len(s.versions)
        ]
        return min(versions) if versions else None


@dataclass(slots=True)
class Group:
    """The n trajectories of one prompt: the payload that travels through the object store."""

    key: GroupKey
    task: Task
    trajectories: list[Trajectory]
    changes: list[Change] = field(default_factory=list)
    """What the group reward asks the run's counters to be changed by."""

    @property
    def valid(self) -> list[Trajectory]:
        return [t for t in self.trajectories if t.failed is None]


class RewardParts(NamedTuple):
    """What a reward says of one trajectory. `parts` are the facts behind it; their group means become metrics."""

    reward: float
    correct: bool
    parts: dict[str, float]


class Verdict(NamedTuple):
    """A filter's answer. `reason` is the metric's name: "" when kept."""

    keep: bool
    reason: str = ""


KEEP = Verdict(True)


@dataclass(slots=True)
class GroupMeta:
    """What the controller knows of a group; lists are per *valid* trajectory, in order of `index`."""

    key: GroupKey
    verdict: Verdict
    index: list[int]
    rewards: list[float]
    correct: list[bool]
    used_code: list[bool]
    response_tokens: list[int]
    model_tokens: list[int]
    prompt_tokens: int
    oldest_version: int | None
    """The oldest policy version that sampled a token of the group; None if the model wrote no token."""
    failures: dict[str, int] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    """An example of each fault in `failures`, in words, where it has any."""
    failed: str | None = None
    """Set when the group as a whole cannot be used; names the fault."""
    stats: dict[str, float] = field(default_factory=dict)
    load: dict[str, float] = field(default_factory=dict)
    """The load of its actor when it ended: sequences running and waiting, preemptions so far (for adaptive depth)."""
    actor: str = ""
    env: str = ""
    seconds: float = 0.0
    masked: list[str] = field(default_factory=list)
    """Why the loss of each valid trajectory is masked, "" where it is trained. Empty: all are trained."""
    changes: list[Change] = field(default_factory=list)
    """What the run's counters are to be changed by."""
    branch_tokens: list[int] = field(default_factory=list)
    """Tokens of the other chains of each valid trajectory's session, prompts included. Empty: there are none."""

    @property
    def trained_tokens(self) -> int:
        """Model-written tokens of the trajectories that are trained."""
        masked = self.masked or [""] * len(self.model_tokens)
        return sum(n for n, why in zip(self.model_tokens, masked, strict=True) if not why)


@dataclass(frozen=True, slots=True)
class BatchItem:
    """A batch's group: its metadata, and where its payload is (an object reference, or the Group itself in tests)."""

    meta: GroupMeta
    payload: Any


RankOf = Mapping[tuple[int, int], int]
"""(b, i) -> the rank that trains valid trajectory i of group b."""


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """What the learner steps on. `rank_of` spreads all of it over the ranks, and `cuts` the part of each update."""

    step: int
    items: list[BatchItem]
    rank_of: RankOf
    cuts: Sequence[RankOf] = ()
    """One for each update that the batch is cut into, of the trajectories that it trains; empty: one update of all."""

    @property
    def updates(self) -> Sequence[RankOf]:
        return self.cuts or (self.rank_of,)

    @property
    def num_tokens(self) -> int:
        """Trained (model-written) tokens of the whole batch: the denominator of the token-mean loss."""
        return sum(item.meta.trained_tokens for item in self.items)


@dataclass(slots=True)
class StepReport:
    """What a learner step returns. `version`: after the step, that before it when no gradient was `finite`."""

    version: int
    metrics: dict[str, float]
    seconds: float
    trained_tokens: int
    left_out: Sequence[str] = ()
    """For each update whose gradient was not finite: which tensor of which trajectory was not."""

    @property
    def finite(self) -> bool:
        """False: nothing was trained, weights, optimiser and version are those before the step. A learner that tells no
        norm is believed."""
        return math.isfinite(self.metrics.get("grad_norm", 0.0))

    @property
    def must_change_weights(self) -> bool:
        """Whether equal weights after this step would be an error: its gradient and its learning rate were not zero, as
        far as is known."""
        return self.metrics.get("lr", 0.0) > 0 and 0 < self.metrics.get("grad_norm", 0.0) < math.inf


@dataclass(frozen=True, slots=True)
class PublishReport:
    """What became of a push. `canary_*` are of the worst engine that it was proved on, in nats where they are a
    difference of log-probs; `refused` engines are being started again."""

    version: int
    seconds: float
    """Seconds of the whole push: the learner trains again after so long."""
    digest: str
    canary_max_diff: float
    refused: int = 0
    write_s: float = 0.0
    """Seconds, among those, that the learner took to gather, hash and write."""
    nbytes: int = 0
    """Bytes that the learner wrote for the engines."""
    delta: bool = False
    """Whether only what changed was written, for every engine."""
    canary_level: float = 0.0
    """Mean difference over the uncertain tokens."""
    canary_excess: float = 0.0
    """The disagreement in units of what is accepted; above 1 it would have been refused."""
    canary_repeats: int = 0
    """Engines on which the proof was repeated on other texts."""
    pushes_repeated: int = 0
    """Engines that got a second, full push because the first was not proved."""
