"""The domain's types: read this file to learn the system. numpy only, because these objects cross Ray's object store.

    Task --(run_episode, n times)--> Trajectory --> Group --(filters, buffer)--> TrainBatch --> learner

A `Task` is a prompt with its label and environment. The policy answers it n times; each answer is a `Trajectory` of
`Segment`s, alternately written by the model and by the environment. The n trajectories are the `Group`, which a rollout
actor scores, filters and describes in a `GroupMeta`. The controller handles the metadata and a reference to the group
only. B accepted groups become a `TrainBatch`; the learner reads the groups themselves.

Shapes: T tokens of a response, P tokens of a prompt, n samples of a group, B groups of a batch.

The *source* of a token says who produced it. The loss mask is derived from the source and never stored: tokens of the
environment are trained only where train.env_mask_from asks for it. The *version* of a token
is the number of learner updates behind the weights that sampled it.

The types of a weight push are in pushes.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

Source = Literal["model", "env"]
"""Who produced a token: the policy, or the environment."""
NO_GRADIENT = 1e-12
"""Norm up to which a gradient is rounding noise. Adam with its eps of 1e-8 then moves no weight by more than 1e-4 of
the learning rate."""
CORRECT_ABOVE = 0.5
"""A response whose reward part `correct` is larger counts as correct. Most rewards give 0 or 1; an agent file or a
reward server may give a score."""
ENV_VERSION = -1
"""Version of a token that no policy sampled."""


# --- Tasks ------------------------------------------------------------------------------------------------------------


class GroupKey(NamedTuple):
    """Identity of one attempt of one prompt.

    Attributes:
        epoch: The epoch, from 0.
        prompt: Index of the prompt in the data set. Stable over epochs and resumes.
        attempt: The attempt, from 0. A prompt whose attempt ended without being used gets another one.
    """

    epoch: int
    prompt: int
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.epoch}/{self.prompt}/{self.attempt}"


class GroupState(StrEnum):
    """Where a dispatched group is.

    In a terminal state its attempt is over: its slot is free, and the ledger has a line that says how it ended.
    """

    ROLLING = "rolling"
    """On a rollout actor."""
    BUFFERED = "buffered"
    """Accepted by the filters; waits to be trained."""
    TRAINING = "training"
    """In the current batch, until the learner's step on it has ended."""
    TRAINED = "trained"
    """Trained. Terminal."""
    FILTERED = "filtered"
    """Dropped by a filter. Terminal."""
    FAILED = "failed"
    """Failed for good: a fault after five new attempts, a row that the environment has refused twice, an error in the
    user's own code (which is not tried again), or a gradient that is not finite. Terminal."""
    REQUEUED = "requeued"
    """This attempt is over (a fault, surplus, an interruption) and the prompt is dispatched again. Terminal."""


TERMINAL = frozenset({GroupState.TRAINED, GroupState.FILTERED, GroupState.FAILED, GroupState.REQUEUED})
"""The states in which an attempt ends. The ledger's events have the same names."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a run knows when it dispatches a group. Travels with the task, so that rewards can read it.

    Attributes:
        update: Learner updates so far.
        max_updates: Learner updates of the whole run (train.max_steps); 0 outside of a training run.
        counters: The method's counters of the whole run, by name. Kept in checkpoints.
        prompt: The method's counters of this prompt, by name.
    """

    update: int = 0
    max_updates: int = 0
    counters: Mapping[str, float] = field(default_factory=dict)
    prompt: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chat:
    """The conversation that a prompt was rendered from.

    Attributes:
        messages: The messages, each with a role and content.
        tools: JSON schemas of the tools that the prompt names.
        of_text: True if the row's prompt was text, which became the one user message.
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    of_text: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """One problem: the rendered prompt, the label, and the environment in which it is solved.

    Attributes:
        prompt: The prompt as text, rendered by the chat template or the input template.
        label: What a reward compares the answer with; may be empty.
        env: Name of the environment.
        meta: The row's meta column.
        run: What the run knew when the task was dispatched.
        chat: The conversation, if the model's chat template rendered the prompt.
        row: Identity of the row in the data, whatever file it is in (data/identity.py).
        extra: Every column of the row besides its prompt, as the file has it. Rewards read it here, environments as
            `task["extra"]`, templates as {name}.
    """

    prompt: str
    label: str
    env: str = "python_tir"
    meta: Mapping[str, Any] = field(default_factory=dict)
    run: RunFacts = RunFacts()
    chat: Chat | None = None
    row: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


class PromptOutcome(NamedTuple):
    """How well the policy did on a prompt, once its group has ended. The curriculum learns from it.

    Attributes:
        prompt: Index of the prompt in the data set.
        right: Correct samples.
        samples: Valid samples; 0 if the group failed.
    """

    prompt: int
    right: int
    samples: int


# --- Engines ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an engine samples one segment.

    Attributes:
        max_tokens: New tokens at most.
        stop: Strings that end the segment. The text includes the one that matched.
        temperature: Softmax temperature; 0 is greedy.
        top_p: Nucleus sampling: keep the likeliest tokens whose probabilities sum to this.
        seed: Seed of the engine's random numbers; None for a random one.
        top_k: Keep this many of the likeliest tokens; 0 for all.
        min_p: Keep tokens with p >= min_p * p_max.
        first_version: Version that sampled the first token of the trajectory that this segment continues; None if the
            trajectory begins with it.
        experts_known: Number of leading prompt tokens whose experts the caller has already, so that the engine need not
            return them (`Completion.experts`). At most the prompt without its last token.
    """

    max_tokens: int
    stop: tuple[str, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    top_k: int = 0
    min_p: float = 0.0
    first_version: int | None = None
    experts_known: int = 0


class EngineBounds(NamedTuple):
    """What no request to an engine may exceed.

    Attributes:
        vocab_size: Token ids must be below it.
        max_model_len: Tokens of prompt and response together.
    """

    vocab_size: int
    max_model_len: int


Finish = Literal["stop", "length", "abort"]
"""Why a completion ended: a stop string or the end token, the token limit, or an abort."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine returns for one request.

    Attributes:
        token_ids: [T] int32, the sampled tokens.
        logprobs: [T] float32, log-probabilities of the sampled tokens under the distribution that sampled them.
        versions: [T] int32, the policy version of each token; weights may change in flight.
        text: The decoded tokens, cut right after a matched stop string.
        finish_reason: Kind of the completion's end.
        stop_reason: With "stop", the stop string or token id that ended it, if one did.
        prompt_logprobs: [P - 1] float32, log-probabilities of the prompt's tokens but the first, if requested.
        experts: [P + T - 1 - experts_known, layers, k] uint8 or uint16: the experts that the engine's mixture gave each
            token of prompt and completion, from `Sampling.experts_known` on. The last sampled token has none, because
            no forward pass has seen it. None if rollout.routing_replay is off or the engine cannot say.
    """

    token_ids: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    text: str
    finish_reason: Finish
    stop_reason: str | int | None = None
    prompt_logprobs: np.ndarray | None = None
    experts: np.ndarray | None = None

    @property
    def began(self) -> int | None:
        """Version that sampled the first token; None if there is no token."""
        return int(self.versions[0]) if len(self.versions) else None


# --- Trajectories -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens by one producer.

    Attributes:
        source: Who produced the tokens.
        token_ids: [T] int32.
        logprobs: [T] float32, of the policy that sampled the token; 0.0 where the environment produced it.
        versions: [T] int32; ENV_VERSION where the environment produced the token.
        text: The decoded tokens.
    """

    source: Source
    token_ids: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    text: str = ""

    @classmethod
    def of_model(cls, completion: Completion) -> Segment:
        """Return the segment of an engine's completion."""
        return cls(
            "model",
            np.asarray(completion.token_ids, np.int32),
            np.asarray(completion.logprobs, np.float32),
            np.asarray(completion.versions, np.int32),
            completion.text,
        )

    @classmethod
    def of_env(cls, token_ids: Sequence[int], text: str) -> Segment:
        """Return the segment of an environment's observation."""
        ids = np.asarray(token_ids, np.int32)
        return cls("env", ids, np.zeros(len(ids), np.float32), np.full(len(ids), ENV_VERSION, np.int32), text)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One action: executed by an environment, or refused by the turn protocol since it could not be read.

    Attributes:
        action: The action as the model wrote it.
        observation: The reply as text.
        outcome: How the step ended (protocol.Outcome): "ok", "model_error", ...
        signals: Raw facts that rewards may weigh: executed, error type, tests passed.
        seconds: Duration of the step.
        reward: What the environment gave for the step, if anything; `reward.name = "env"` makes it the trajectory's.
        done: True if the environment ended the episode.
        truncated: True if the environment cut the episode.
        turn: Which of the trajectory's model segments made the call, from 0; None if it was not counted.
    """

    action: str
    observation: str
    outcome: str
    signals: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    reward: float | None = None
    done: bool = False
    truncated: bool = False
    turn: int | None = None

    @property
    def executed(self) -> bool:
        """Whether an environment had the action; one that ran and failed was executed, too."""
        return self.signals.get("error_type") != "malformed_call"


class CounterUpdate(NamedTuple):
    """One update of a counter that the run keeps for its method.

    Attributes:
        scope: Whether the counter belongs to the run or to the prompt.
        name: The counter's name.
        how: What is done with `value`. All three can be applied in any order, with the same result.
        value: The operand.
    """

    scope: Literal["run", "prompt"]
    name: str
    how: Literal["add", "lowest", "highest"]
    value: float


@dataclass(slots=True)
class Trajectory:
    """One sampled response to a task.

    Attributes:
        index: Which of the group's samples it is, from 0.
        prompt_ids: [P] int32.
        segments: The response, alternately by model and environment.
        calls: The tool calls, in order.
        finish_reason: Kind of the response's end: "stop", "length" or "abort"; empty if it has none.
        stop_reason: What ended it, if more is known: the stop string or token id of the last segment, or "env_done",
            "env_truncated" (the environment ended or cut the episode) or "turn_limit" (protocol's max_turn_tokens).
        failed: Code of the fault if infrastructure or user code failed. Such a trajectory has no reward and is never
            trained.
        why: The fault as a sentence; empty if the trajectory did not fail.
        traceback: The traceback of the user code that raised, if it failed so.
        reward: The reward, once it was scored.
        parts: Named values behind the reward; their means become metrics.
        masked: Why a valid trajectory is not trained; empty if it is. It still counts in its group's statistics.
        changes: Updates of the method's counters that its reward asked for.
        branches: Other chains of tokens of the same session (engines/session_trace.py), with prompt and segments only.
            They are trained with this trajectory and share its reward.
        experts: [at most P + T, layers, k] uint8 or uint16: the experts that each token of prompt and response got when
            the engine first computed it, for the learner to use the same ones (rollout.routing_replay). Tokens at the
            end may be missing. None: nothing is replayed.
    """

    index: int
    prompt_ids: np.ndarray
    segments: list[Segment] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str = ""
    stop_reason: str | int | None = None
    failed: str | None = None
    why: str = ""
    traceback: str = ""
    reward: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    masked: str = ""
    changes: list[CounterUpdate] = field(default_factory=list)
    branches: list[Trajectory] = field(default_factory=list)
    experts: np.ndarray | None = None

    def add_experts(self, rows: np.ndarray | None, first: int) -> None:
        """Append the experts of tokens whose experts are not known yet.

        Args:
            rows: [n, layers, k], as an engine returned them. None: the engine returned none.
            first: Position of the first row's token in prompt and response. Rows of tokens that have experts already
                are ignored: a token keeps the experts with which it was first computed.
        """
        known = 0 if self.experts is None else len(self.experts)
        if rows is None or first > known:
            return
        new = rows[known - first :]
        if len(new):
            self.experts = new.copy() if self.experts is None else np.concatenate([self.experts, new])

    @property
    def sequences(self) -> list[Trajectory]:
        """All chains of tokens. Its own, at whose end the reward is paid, is the last."""
        return [*self.branches, self]

    def _concatenated(self, name: str, dtype: DTypeLike) -> np.ndarray:
        if not self.segments:
            return np.zeros(0, dtype)
        return np.concatenate([getattr(segment, name) for segment in self.segments])

    @property
    def scored(self) -> float:
        """The reward of a scored trajectory. Every valid trajectory of an evaluated group has one.

        Raises:
            ValueError: The trajectory has no reward: it failed, or was not scored yet.
        """
        if self.reward is None:
            raise ValueError(
                f"Trajectory {self.index} has no reward ({self.failed or 'it was not scored'})."
                " Score it first, or look at valid ones only."
            )
        return self.reward

    @property
    def token_ids(self) -> np.ndarray:
        """[T] int32, the response: model and environment tokens in order."""
        return self._concatenated("token_ids", np.int32)

    @property
    def logprobs(self) -> np.ndarray:
        """[T] float32, 0.0 where the environment produced the token."""
        return self._concatenated("logprobs", np.float32)

    @property
    def versions(self) -> np.ndarray:
        """[T] int32, ENV_VERSION where the environment produced the token."""
        return self._concatenated("versions", np.int32)

    @property
    def is_model(self) -> np.ndarray:
        """[T] bool, True where the model produced the token: the loss mask, but for train.env_mask_from."""
        parts = [np.full(len(segment.token_ids), segment.source == "model") for segment in self.segments]
        return np.concatenate(parts) if parts else np.zeros(0, bool)

    @property
    def turns(self) -> np.ndarray:
        """[T] int, the number of the model segment that a token is in or follows, from 0."""
        turn = -1
        parts = [np.zeros(0, int)]
        for segment in self.segments:
            turn += segment.source == "model"
            parts.append(np.full(len(segment.token_ids), max(turn, 0)))
        return np.concatenate(parts)

    def earned(self, weight: float = 1.0) -> np.ndarray:
        """Return what the environment gave for the calls of each turn.

        Args:
            weight: Factor on the environment's rewards.

        Returns:
            [number of model segments] float64.
        """
        rewards = np.zeros(sum(segment.source == "model" for segment in self.segments))
        for number, call in enumerate(self.calls):
            turn = number if call.turn is None else call.turn
            rewards[min(turn, len(rewards) - 1)] += weight * (call.reward or 0.0)
        return rewards

    @property
    def text(self) -> str:
        """The response as text, by model and environment."""
        return "".join(segment.text for segment in self.segments)

    @property
    def response_tokens(self) -> int:
        """T: model and environment tokens."""
        return sum(len(segment.token_ids) for segment in self.segments)

    @property
    def model_tokens(self) -> int:
        """Number of sampled tokens, those of the branches included."""
        return sum(
            len(segment.token_ids)
            for sequence in self.sequences
            for segment in sequence.segments
            if segment.source == "model"
        )

    @property
    def branch_tokens(self) -> int:
        """Tokens of the branches, their prompts included: what they add to a learner step."""
        return sum(len(branch.prompt_ids) + branch.response_tokens for branch in self.branches)

    @property
    def oldest_version(self) -> int | None:
        """The oldest policy version that sampled a token; None if the model wrote no token."""
        versions = [
            int(segment.versions.min())
            for sequence in self.sequences
            for segment in sequence.segments
            if segment.source == "model" and len(segment.versions)
        ]
        return min(versions) if versions else None


# --- Groups -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Group:
    """The n trajectories of one prompt: the payload that travels through the object store.

    Attributes:
        key: Identity of the attempt.
        task: The task.
        trajectories: All samples, failed ones included.
        changes: Updates of the method's counters that the group reward asked for.
    """

    key: GroupKey
    task: Task
    trajectories: list[Trajectory]
    changes: list[CounterUpdate] = field(default_factory=list)

    @property
    def valid(self) -> list[Trajectory]:
        """The trajectories that did not fail."""
        return [trajectory for trajectory in self.trajectories if trajectory.failed is None]


class RewardParts(NamedTuple):
    """The result of a reward.

    Attributes:
        reward: The reward.
        correct: True if the answer is right, whatever the reward.
        parts: Named values behind the reward; their group means become metrics.
    """

    reward: float
    correct: bool
    parts: dict[str, float]


class Verdict(NamedTuple):
    """Decision of a filter.

    Attributes:
        keep: True if the group is to be trained.
        reason: Names the metric that counts dropped groups; empty for a kept group.
    """

    keep: bool
    reason: str = ""


KEEP = Verdict(True)


@dataclass(frozen=True, slots=True)
class GroupMeta:
    """What the controller knows of a group. Sequences have one element per *valid* trajectory, in order of `index`.

    It never changes: a change makes a new one (dataclasses.replace). So a checkpoint's writer may keep it.

    Attributes:
        key: Identity of the attempt.
        verdict: Decision of the filters. KEEP if none decided: in an evaluation, and where `failed` is set.
        index: Which samples of the group are valid.
        rewards: Their rewards.
        correct: Whether their answers are right.
        used_code: Whether they called a tool.
        response_tokens: Their tokens by model and environment.
        model_tokens: Their sampled tokens, branches included.
        prompt_tokens: Tokens of the prompt.
        oldest_version: The oldest policy version that sampled a token of the group; None if the model wrote no token.
        failures: Number of failed trajectories by code of the fault.
        why: An example of each fault in `failures` as a sentence, if it has one.
        failed: Code of the fault if the group as a whole cannot be used, whatever the verdict.
        stats: Means over the group by name: calls, parts of the rewards, lengths.
        load: Load of the group's actor when it ended: sequences running and waiting, preemptions so far.
        actor: Name of the group's actor.
        env: Name of the environment.
        seconds: Duration of the rollout.
        masked: Why each valid trajectory's loss is masked, "" where it is trained. Empty: all are trained.
        changes: Updates of the method's counters that the group's rewards asked for.
        branch_tokens: Tokens of each valid trajectory's branches, their prompts included. Empty: there are none.
    """

    key: GroupKey
    verdict: Verdict
    index: Sequence[int]
    rewards: Sequence[float]
    correct: Sequence[bool]
    used_code: Sequence[bool]
    response_tokens: Sequence[int]
    model_tokens: Sequence[int]
    prompt_tokens: int
    oldest_version: int | None
    failures: Mapping[str, int] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)
    failed: str | None = None
    stats: Mapping[str, float] = field(default_factory=dict)
    load: Mapping[str, float] = field(default_factory=dict)
    actor: str = ""
    env: str = ""
    seconds: float = 0.0
    masked: Sequence[str] = ()
    changes: Sequence[CounterUpdate] = ()
    branch_tokens: Sequence[int] = ()

    @property
    def trained_tokens(self) -> int:
        """Number of model-written tokens of the trajectories that are trained."""
        masked = self.masked or [""] * len(self.model_tokens)
        return sum(tokens for tokens, reason in zip(self.model_tokens, masked, strict=True) if not reason)


# --- Batches ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One group of a batch.

    Attributes:
        meta: Its metadata.
        payload: Where the group is: an object reference, or the `Group` itself in tests.
    """

    meta: GroupMeta
    payload: Any


RankOf = Mapping[tuple[int, int], int]
"""(b, i) -> the learner rank that trains valid trajectory i of group b."""


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """What the learner steps on.

    Attributes:
        step: The learner's version before the step.
        items: The groups.
        rank_of: Spreads all trajectories over the learner ranks.
        cuts: The part of `rank_of` that each update trains, if the batch is cut into several updates. Empty: one update
            of everything.
    """

    step: int
    items: list[BatchItem]
    rank_of: RankOf
    cuts: Sequence[RankOf] = ()

    @property
    def updates(self) -> Sequence[RankOf]:
        """The part of each update; at least one."""
        return self.cuts or (self.rank_of,)

    @property
    def num_tokens(self) -> int:
        """Model-written tokens of the whole batch, for throughput figures.

        The loss divides by another count, which leaves out masked samples and has tokens of the environment where
        they are trained (learner/passes.py, `counts`).
        """
        return sum(item.meta.trained_tokens for item in self.items)


@dataclass(slots=True)
class StepReport:
    """What a learner step returns.

    Attributes:
        version: The version after the step; the one before it if no gradient was finite.
        metrics: Metrics of the step by name.
        seconds: Duration of the step.
        trained_tokens: Model-written tokens that were trained.
        why_skipped: For each update whose gradient was not finite, a sentence that names the tensor and the trajectory.
    """

    version: int
    metrics: dict[str, float]
    seconds: float
    trained_tokens: int
    why_skipped: Sequence[str] = ()

    @property
    def finite(self) -> bool:
        """False if nothing was trained: weights, optimizer and version are those before the step.

        A missing gradient norm counts as finite.
        """
        return math.isfinite(self.metrics.get("grad_norm", 0.0))

    @property
    def must_change_weights(self) -> bool:
        """True if equal weights after this step would be an error: it had a learning rate and a gradient.

        Whitening leaves advantages of some 1e-13 in a batch of equal rewards, whose mean is rounded. Their gradient may
        move nothing.
        """
        return self.metrics.get("lr", 0.0) > 0 and NO_GRADIENT < self.metrics.get("grad_norm", 0.0) < math.inf
