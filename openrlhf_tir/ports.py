"""Ports: what the rooms need of each other, as Protocols. Each names its implementations; fakes in tests are held to
the same.

episodes  -> Engine, Codec, EnvSession
serving, cluster -> RolloutEngine
pipeline  -> Prompts, Rollout, Learner, Publisher, RemoteEngine
weights   -> Learner, RemoteEngine
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, TypeVarTuple, runtime_checkable

from .deadlines import Deadline
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

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class Engine(Protocol):
    """Prompt token ids -> sampled token ids: engines/vllm_engine.py (real), engines/torch_engine.py (deterministic, for
    tests), simulation/emulated_engine.py (sleeps like a cluster)."""

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        """Continue `token_ids`. Stop strings are included in the text. The log-probs are of the plain softmax, or, in a
        run that samples from another distribution (Rollout.plain), of what `sampling` makes of it.

        Raises EngineError when the engine cannot answer, RequestRefused when no engine could. `Completion.versions`
        names, per token, the weights that sampled it.
        """


class ProofGate(Protocol):
    """Withholds what an engine sampled until its weights are proved: engines/proof.py."""

    async def passed(self, versions_T: Any) -> None:
        """Wait until tokens that these policy versions sampled may be used.

        Args:
            versions_T: [T] int: the version that sampled each token.

        Raises:
            WeightsUnverified: They may never be used.
        """


@runtime_checkable
class RolloutEngine(Engine, Protocol):
    """Everything that an engine can do, declared once.

    Implemented by engines/vllm_engine.py and engines/torch_engine.py. A rollout actor owns one engine and calls it
    directly. Other processes call its async methods by `RemoteEngine.call`; nothing in between declares them again. An
    engine belongs to one event loop.
    """

    @property
    def proof(self) -> ProofGate: ...

    bounds: EngineBounds
    broken: str | None
    """The reason why this engine cannot be used any more; None while it can."""

    @property
    def version(self) -> int:
        """Number of learner updates behind the weights that sample now."""

    @classmethod
    async def start(cls, model: str, cfg: Config, *, version: int = 0, index: int = 0) -> Self:
        """Load a model.

        Args:
            model: A directory, or a name on the Hugging Face hub.
            cfg: The run's configuration.
            version: The version that the loaded weights count as.
            index: Number of this engine in the run.

        Raises:
            EngineError: The engine did not start.
        """

    async def alive(self) -> None:
        """Return if whatever computes is well, in whichever process it runs.

        Raises:
            EngineError: It is broken, does not answer, or makes no progress.
        """

    async def abort(self, request_id: str) -> None:
        """End a request: it is answered with what it has and finish_reason "abort". Unknown requests are ignored."""

    def progress(self) -> dict[str, int]:
        """Return the number of tokens sampled so far, by the id of each request under way."""

    async def pause(self) -> None:
        """Freeze all requests; new ones wait."""

    async def resume(self) -> None:
        """Let requests go on after `pause`."""

    async def sleep(self) -> None:
        """Leave the GPU's memory to the learner (train.colocate_all). Requests wait for `wake` or a push.

        Idempotent.
        """

    async def wake(self) -> None:
        """Take the memory back, with the weights that the engine had. Idempotent."""

    async def update_weights(
        self, path: Path, version: int, digest: str, canary: Canary | None = None, link: str | None = None
    ) -> list[Completion]:
        """Load weights from a safetensors file; wakes an engine that sleeps.

        Args:
            path: The full weights or, with a `link`, what changed since the push before.
            version: Number of learner updates behind the weights.
            digest: Digest of the full weights after the push.
            canary: What to sample first with the new weights; None: nothing.
            link: Chains a delta to the push before it.

        Returns:
            What the canary sampled.

        Raises:
            WeightsUnverified: The file is not the announced one, or did not load.
            DeltaRefused: A WeightsUnverified after which the engine has its old weights and can take a full push.
        """

    async def receive_weights(self, rendezvous: BroadcastRendezvous, first_rank: int, push_id: str) -> BroadcastResult:
        """Take part in a broadcast; worker i of the engine is rank `first_rank` + i.

        Requests are frozen from here on until `apply_received`, or for ever: weights of a torn push are nobody's.

        Raises:
            WeightsUnverified: The broadcast broke the engine.
        """

    async def apply_received(self, version: int, digest: str, canary: Canary | None = None) -> list[Completion]:
        """Sample from the received weights as `version`, and return what the canary sampled.

        Raises:
            WeightsUnverified: What was received does not have this digest.
        """

    async def confirm_weights(self, version: int) -> None:
        """Release what was sampled with `version`; until then it is withheld."""

    async def discard(self, reason: str) -> None:
        """Give up the engine because its weights are unknown: nothing that they sampled is ever returned."""

    async def sample_canary(self, prompt_ids: list[list[int]], max_tokens: int, seed: int) -> list[Completion]:
        """Return one short completion per prompt, which the learner scores."""

    def stats(self) -> dict[str, float]:
        """Return figures by name: among others `running` and `waiting` requests, `version`, `paused`.

        serving/metrics.py exports each as `tir_engine_NAME`.
        """

    def drain_busy_intervals(self) -> list[tuple[float, float]]:
        """Return (start, end) in epoch seconds since the last call: when at least one request was decoding."""

    async def openai_app(self, cfg: Config) -> Any:
        """Return the engine's own ASGI app, or None."""

    async def stop(self) -> None:
        """Abort all requests and end the engine's processes."""


class RemoteEngine(Protocol):
    """An engine as the controller holds it: cluster/engine_handle.py; engines/local_engine.py within one process.

    Weight pushes and the sharing of GPUs reach an engine by `call` and by nothing else.
    """

    @property
    def name(self) -> str: ...

    version: int | None
    """Version of the weights that were last proved on this engine; None before the first proof. It belongs to the
    process: the engine that replaces this one has a handle of its own."""

    async def call(
        self, method: Callable[[Any, *Arguments], Awaitable[Result]], *args: *Arguments, deadline: Deadline
    ) -> Result:
        """Call a method of the engine, given as an attribute of RolloutEngine, and return its result.

            completions = await engine.call(RolloutEngine.sample_canary, prompt_ids, 16, 0, deadline=push_deadline)

        What the method itself raises is raised here.

        Raises:
            EngineGone: The engine's process died, its engine is broken, or it did not answer before the deadline. It is
                given up, and its owner replaces it.
        """

    async def discard(self, reason: str) -> None:
        """Give up the engine because its weights are unknown. Nothing that it sampled with them is ever returned."""


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
