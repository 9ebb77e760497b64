"""Ports: what the rooms need of each other, as Protocols. Each names its implementations; fakes in tests are held to
the same.

episodes  -> Engine, Codec, EnvSession
serving, cluster -> RolloutEngine
pipeline  -> Prompts, Rollout, Learner, Publisher
weights   -> Learner
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from .protocol import StepReply
from .types import (
    BroadcastRendezvous,
    BroadcastResult,
    Canary,
    Completion,
    DeltaDigest,
    EngineBounds,
    Group,
    GroupKey,
    GroupMeta,
    PromptOutcome,
    PublishReport,
    Sampling,
    StepReport,
    Task,
    TrainBatch,
)

if TYPE_CHECKING:
    from .config import Config


class Engine(Protocol):
    """Prompt token ids -> sampled token ids: engines/vllm_engine.py (real), engines/torch_engine.py (deterministic, for
    tests), simulation/emulated_engine.py (sleeps like a cluster)."""

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        """Continue `token_ids`. Stop strings are included in the text. The log-probs are of the plain softmax, or, in a
        run that samples from another distribution (Rollout.plain), of what `sampling` makes of it.

        Raises EngineError when the engine cannot answer, RequestRefused when no engine could. `Completion.versions`
        names, per token, the weights that sampled it.
        """


class Passes(Protocol):
    async def passed(self, versions_T: Any) -> None:
        """Return once what these versions [T] sampled may be used. Raises WeightsUnverified when it never may."""


@runtime_checkable
class RolloutEngine(Engine, Protocol):
    """What a rollout actor needs of an engine: engines/vllm_engine.py, engines/torch_engine.py. Of one event loop."""

    @property
    def proof(self) -> Passes: ...

    bounds: EngineBounds
    broken: str | None
    """Why this engine cannot be used any more; None while it can."""

    @property
    def version(self) -> int:
        """Learner updates behind the weights that sample now."""

    @classmethod
    async def start(cls, model: str, cfg: Config, *, version: int = 0, index: int = 0) -> Self:
        """Load `model`, whose weights count as `version`. Raises EngineError."""

    async def alive(self) -> None:
        """A sign of life of whatever computes, in whichever process. Raises EngineError when it is broken, silent, or
        makes no progress."""

    async def abort(self, request_id: str) -> None:
        """The request is answered with what it has, finish_reason "abort". Nothing if it has ended, or is not known."""

    def progress(self) -> dict[str, int]:
        """Request -> tokens sampled so far, of those that it is answering."""

    async def pause(self) -> None:
        """Freeze all requests; new ones wait."""

    async def resume(self) -> None: ...

    async def sleep(self) -> None:
        """train.colocate_all: leave the GPU's memory to the learner. Requests wait for `wake` or a push. Idempotent."""

    async def wake(self) -> None:
        """With the weights that it had. Idempotent."""

    async def update_weights(
        self, path: Path, version: int, digest: str, canary: Canary | None = None, link: str | None = None
    ) -> list[Completion]:
        """Load a safetensors file; with a `link` a delta, which continues the push before. What `canary` sampled with
        it. Raises WeightsUnverified; of it DeltaRefused when this node cannot continue: the engine is as it was, and
        takes a full push. Wakes an engine that sleeps."""

    async def receive_weights(self, meeting: BroadcastRendezvous, first_rank: int, push: str) -> BroadcastResult:
        """Take part in a broadcast, worker i as rank `first_rank` + i. Requests are frozen from here on, until
        `use_received` or for ever: what a torn push left is nobody's weights. Raises WeightsUnverified when the engine
        is broken by it."""

    async def use_received(self, version: int, digest: str, canary: Canary | None = None) -> list[Completion]:
        """What was received, of `digest`, samples as `version`. What `canary` sampled. Raises WeightsUnverified."""

    async def proved(self, version: int) -> None:
        """Says that what `version` sampled may be used."""

    async def discard(self, why: str) -> None:
        """The weights are unknown: nothing that they sampled is ever used."""

    async def canary(self, prompt_ids: list[list[int]], max_tokens: int, seed: int) -> list[Completion]:
        """One short sample per prompt for the learner to score."""

    def stats(self) -> dict[str, float]:
        """Among others `running` and `waiting` requests, `version`, `paused`. The names are those of serving/metrics.py
        without `tir_engine_`."""

    def drain_busy_intervals(self) -> list[tuple[float, float]]:
        """(start, end) in epoch seconds, since the last call, during which at least one request was decoding."""

    async def openai_app(self, cfg: Config) -> Any:
        """An ASGI app of the engine's own, or None."""

    async def stop(self) -> None:
        """End what runs, and the engine's processes."""


class Codec(Protocol):
    """Text <-> tokens. Special tokens in tools' text are inert: `encode` makes no special id, `encode_prompt` may.

    A codec with `inert` also keeps other added tokens out of a tool's text (engines/codec.py)."""

    def encode(self, text: str) -> list[int]: ...
    def encode_prompt(self, text: str) -> list[int]: ...
    def decode(self, token_ids: Sequence[int]) -> str: ...


class EnvSession(Protocol):
    """One trajectory's conversation with its environment; entered before `reset`, left at its end. envs/session.py."""

    @property
    def server(self) -> str | None:
        """The process that holds it, between `reset` and the end: what goes down with it hits all its sessions. None:
        nothing that can."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...
    async def reset(self) -> str:
        """The first observation. Raises EnvError, EnvTimeout or EnvFull."""

    async def step(self, action: str, *, step_id: int) -> StepReply:
        """Only trainable outcomes come back; EnvError, EnvLost (the server is gone, with all its sessions) and
        EnvTimeout are raised."""


class Rollout(Protocol):
    """Rollout actors behind a router. A payload stands for a Group: an object reference, or the Group itself."""

    async def run_group(self, key: GroupKey, task: Task) -> tuple[GroupMeta, Any]:
        """Raises InfraError when the actor died or the group could not be run at all."""

    async def fetch(self, payloads: Sequence[Any]) -> list[Group]:
        """The groups behind the payloads."""

    async def store(self, group: Group) -> Any:
        """A payload for a group that was read from a checkpoint."""

    def where(self, key: GroupKey) -> str:
        """The actor that a rolling group is at, for a person: "on rollout-0"."""

    def engine_stats(self) -> dict[str, float]:
        """Cheap figures for the metrics; may be empty. `depth = auto` looks at open [actors that get groups],
        running and waiting [sequences], placed [samples of groups that engines were given since they told], aside
        [samples of evaluations], width [sequences that run at once] and preemptions [so far]."""


class Publisher(Protocol):
    def changing(self) -> AbstractAsyncContextManager[None]:
        """Held while the learner steps or takes up a checkpoint, and for nothing else: meanwhile nobody may ask it for
        weights or scores. Waits for an engine that joins."""

    async def publish(self, version: int, *, must_differ: bool = False) -> PublishReport:
        """All engines have the learner's weights and it was proved. `must_differ`: an update since the last push must
        have changed something.

        Raises WeightsUnverified when it was not proved, or when the weights are those of the last push though they
        `must_differ`."""


class Prompts(Protocol):
    """An ordered, resumable stream of prompts."""

    def next(self) -> tuple[int, int] | None:
        """(epoch, prompt), or None when all episodes are through."""

    def in_place_of(self, prompt: int) -> tuple[int, int] | None:
        """Another (epoch, prompt) of the same environment, out of turn, for one that will not be trained; None where
        environments have no shares."""

    def more(self) -> bool:
        """Whether `next` has another; without drawing it."""

    def learned(self, ended: Sequence[PromptOutcome]) -> None:
        """A batch was trained; `ended`: groups that ended since the last, in any order. A curriculum learns of them."""

    def facts(self) -> dict[str, float]:
        """What there is to say of the order, as metrics of the step; may be empty."""

    def task(self, prompt: int) -> Task: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...


class Saves(Protocol):
    """What a checkpoint asks of a learner; `Learner` says what each does."""

    async def save(self, directory: Path) -> None: ...
    async def written(self) -> Mapping[str, tuple[int, str]]: ...


class Learner(Protocol):
    version: int
    """Number of updates behind the current weights."""

    async def accumulate(self, part: TrainBatch) -> None:
        """Forward and backward of a part of the batch that the next `step` completes; no weight changes. `part.step` is
        the version. A `load` makes what was accumulated void. Asked only with pipeline.early_accumulation. Raises
        InfraError when a rank died."""

    async def step(self, batch: TrainBatch) -> StepReport:
        """One optimiser update for each of `batch.updates`, less those whose gradient is not finite; the version counts
        them. After `accumulate` the batch is what its parts left, and the update and its report are of all of them.
        Raises InfraError when a rank died."""

    async def publish(self, path: Path) -> str:
        """Write the full weights, HF names, as safetensors to `path`; return their digest."""

    async def publish_changes(self, path: Path, base_version: int) -> DeltaDigest | None:
        """Write what changed since the last `publish` or `publish_changes`, which was of `base_version`. None: a full
        push must go in its place. Asked only with vllm.sync_delta."""

    async def score(self, sequences: list[list[int]]) -> list[Any]:
        """Log-prob of every token of each sequence but the first, under the current weights: list of [T-1] float32."""

    async def save(self, directory: Path) -> None:
        """Every rank's share of model, optimiser, scheduler and RNG into `directory`. Returns when all ranks have
        copied theirs to host memory; the call is on its way to them before the first await. They are written in the
        background."""

    async def written(self) -> Mapping[str, tuple[int, str]]:
        """Every rank's files of the last `save` are safe on disk: path -> (bytes, XXH3-128 in hexadecimal) of those
        that the ranks hashed while writing; the controller hashes others itself. Raises OSError when a disk refused."""

    async def load(self, directory: Path) -> int:
        """Restore what `save` wrote; returns the version."""

    async def export(self, directory: Path) -> None:
        """A directory that plain transformers loads: weights, config, tokenizer."""


class Broadcasts(Learner, Protocol):
    """A learner that sends its weights to all engines at once."""

    async def open_broadcast(self, receivers: int) -> BroadcastRendezvous:
        """Where so many workers of engines meet rank 0, on its node. What was opened before is no more."""

    async def broadcast(self, push: str) -> BroadcastResult:
        """Send the full weights, HF names, to all who have come to the meeting. A group's fault is in the answer."""

    async def end_broadcast(self, push: str, why: str) -> None:
        """Tell all who take part in a `broadcast` that was asked for to give it up."""
