"""What the rooms need of each other, as Protocols. Each names its implementations; the tests' fakes implement the same.

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

from .protocol import StepReply
from .pushes import BroadcastRendezvous, BroadcastResult, Canary, DeltaDigest, Exposed, PublishReport
from .types import (
    Completion,
    EngineBounds,
    Group,
    GroupKey,
    GroupMeta,
    PromptOutcome,
    Sampling,
    StepReport,
    Task,
    TrainBatch,
)
from .waiting.deadlines import Deadline

if TYPE_CHECKING:
    from .config import Config

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class Engine(Protocol):
    """Samples token ids after prompt token ids.

    Implemented by engines/vllm_engine.py, engines/torch_engine.py (deterministic, for tests) and
    benchmarks/emulated_engine.py (sleeps as long as a cluster would take).
    """

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        """Continue `token_ids`.

        The text includes the stop string. The log-probs are of the plain softmax or, in a run that samples from another
        distribution (Rollout.plain), of that one. `Completion.versions` names the weights that sampled each token.

        Raises:
            EngineError: The engine cannot answer.
            RequestRefused: No engine could answer: the request is too long, or has tokens beyond the vocabulary.
            WeightsUnverified: The push that sampled the tokens was not proved, so they may never be used.
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

    Every method that samples or loads raises EngineError if the engine is `broken`. Its Raises has what comes besides.
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
    async def start(cls, model: str, cfg: Config, *, index: int = 0) -> Self:
        """Load a model.

        Args:
            model: A directory, or a name on the Hugging Face hub.
            cfg: The run's configuration.
            index: Number of this engine in the run.

        Raises:
            ConfigError: The settings need a GPU, and there is none.
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

        Raises:
            EngineError: It failed, or a weight push is not over. The engine is broken.
        """

    async def wake(self) -> None:
        """Take the memory back, with the weights that the engine had. Idempotent.

        Raises:
            EngineError: It failed. The engine is broken.
        """

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
            WeightsUnverified: The file is not the announced one, and the old weights stay; or it did not load, and the
                engine is broken.
            DeltaRefused: A WeightsUnverified after which the engine has its old weights and can take a full push.
            WeightsMisloaded: A WeightsUnverified: the model holds something else than was sent. A full push may mend
                it.
            DeadlineMissed: The file was not checked within timeouts.push_s.
        """

    async def map_exposed(self, exposed: Exposed) -> str | None:
        """Map what the learner has exposed into this engine's workers and check its digests. Requests go on.

        Returns:
            Why a worker cannot read it, in which case nothing has changed; None if all can.

        Raises:
            DeadlineMissed: It was not mapped within timeouts.push_s.
        """

    async def load_exposed(self, exposed: Exposed, version: int, canary: Canary | None = None) -> list[Completion]:
        """Load exposed buckets that were mapped before; with the last ones, sample from them as `version`.

        Requests are frozen from the first call of a push until the one whose `exposed.remaining` is 0. The answer
        acknowledges: the learner may overwrite the buckets.

        Args:
            exposed: The next buckets of the push.
            version: Number of learner updates behind the weights.
            canary: What to sample first with the new weights; None: nothing.

        Returns:
            What the canary sampled; nothing before the last buckets.

        Raises:
            WeightsUnverified: They did not load, or are not the announced ones. The engine is broken.
            WeightsMisloaded: As in `update_weights`.
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
            WeightsUnverified: What was received does not have this digest. The engine is broken.
            WeightsMisloaded: As in `update_weights`.
        """

    async def confirm_weights(self, version: int) -> Mapping[str, float]:
        """Release what was sampled with `version`; until then it is withheld.

        Returns:
            Seconds of the parts of the push by the name of their metric, as far as this engine measures them:
            `push_map_s` before the pause; `push_freeze_s`, `push_begin_s`, `push_load_s`, `push_read_back_s` and
            `push_resume_s` in it; `push_canary_s` after it.
        """

    async def discard(self, reason: str) -> None:
        """Give up the engine because its weights are unknown: nothing that they sampled is ever returned."""

    async def sample_canary(self, prompt_ids: list[list[int]], max_tokens: int, seed: int) -> list[Completion]:
        """Return one short completion per prompt, which the learner scores.

        Raises:
            EngineError: A push is under way, or the engine sleeps: the canary would wait for ever.
        """

    def stats(self) -> dict[str, float]:
        """Return figures by name: among others `running` and `waiting` requests, `version`, `paused`.

        rollout/serving/metrics.py exports each as `tir_engine_NAME`.
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
    """Text to tokens and back.

    Special tokens in a tool's text are inert: `encode` never makes a special id, `encode_prompt` may. A codec with
    `inert` also keeps other added tokens out of a tool's text (engines/codec.py).
    """

    def encode(self, text: str) -> list[int]: ...
    def encode_prompt(self, text: str) -> list[int]: ...
    def decode(self, token_ids: Sequence[int]) -> str: ...


class EnvSession(Protocol):
    """One trajectory's session with its environment: rollout/environment_client/session.py.

    Entered before `reset`, left at its end."""

    @property
    def server(self) -> str | None:
        """The process that holds the session, from `reset` to the end; None: there is none that could die.

        If it dies, all its sessions are lost.
        """

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...
    async def reset(self) -> str:
        """Return the first observation.

        Raises:
            TaskRefused: The server can make no episode of this row. It is an EnvError.
            EnvironmentCodeError: The environment's own code failed.
            EnvError: The environment failed, or no server is up.
            EnvTimeout: It did not answer in time.
            EnvFull: There was no room.
        """

    async def step(self, action: str, *, step_id: int) -> StepReply:
        """Return the reply to an action.

        Only outcomes that may be trained are returned.

        Raises:
            EnvLost: The server is gone, with all its sessions. It is an EnvError.
            EnvironmentCodeError: The environment's own code failed.
            EnvError: The environment failed.
            EnvTimeout: It did not answer in time.
            EnvFull: There was no room.
        """


class Rollout(Protocol):
    """The rollout engines: cluster/engine_pool.py. A payload is an object reference to a Group, or the Group itself."""

    async def run_group(self, key: GroupKey, task: Task) -> tuple[GroupMeta, Any]:
        """Run a group and return its metadata and payload.

        Raises:
            InfraError: The engine died, or the group could not be run at all.
            PipelineError: No engine is left, and none will come.
        """

    async def fetch(self, payloads: Sequence[Any]) -> list[Group]:
        """Return the groups of these payloads.

        Raises:
            PayloadLost: The node that held one is gone, or did not hand it over in time.
        """

    async def store(self, group: Group) -> Any:
        """Return a payload for a group that was read from a checkpoint."""

    def where(self, key: GroupKey) -> str:
        """Return the place of a rolling group, for messages: "on rollout-0"."""

    def engine_stats(self) -> dict[str, float]:
        """Return figures of all engines together, for the metrics; may be empty.

        `depth = auto` reads: `open` (engines that get groups), `running` and `waiting` (sequences), `placed` (samples
        of groups that engines got since their last reports), `aside` (samples of evaluations), `width` (sequences that
        run at once) and `preemptions` (so far).
        """


class Publisher(Protocol):
    """Pushes the learner's weights to the engines and proves them: weights/publisher.py."""

    def exclusive_learner(self) -> AbstractAsyncContextManager[None]:
        """Have the learner to oneself while it accumulates, steps or loads a checkpoint, and for nothing else.

        Nobody else asks it for weights or scores meanwhile, so no engine joins. Entering waits for one that is joining.

        Raises:
            InfraError: Only with train.colocate_all, on entering: the GPUs were not free in time (DeadlineMissed), or a
                rank or engine failed as it changed its turn.
        """

    async def publish(self, version: int, *, must_differ: bool = False) -> PublishReport:
        """Push the learner's weights to all engines, and prove them.

        Args:
            version: Number of learner updates behind the weights.
            must_differ: True if an update since the last push must have changed something.

        Raises:
            LearnerDied: A rank of the learner died while it wrote or scored. cluster/jobs/train.py starts the ranks
                again.
            WeightsUnverified: The weights equal those of the last push though they `must_differ`, or a full file has
                another digest than the delta for which it stands. It ends the run, as all below do. An engine on which
                weights cannot be proved raises nothing: it is discarded and counted in the report.
            Diverged: The learner's own log-probs of the texts of the proof are not finite.
            InfraError: The weights could not be written or sent, for example on a full disk.
        """


class Prompts(Protocol):
    """An ordered, resumable stream of prompts: cluster/jobs/inputs.py, which takes the order from data/stream.py."""

    def next(self) -> tuple[int, int] | None:
        """Return the next (epoch, prompt); None at the end of the last epoch."""

    def in_place_of(self, prompt: int) -> tuple[int, int] | None:
        """Return another (epoch, prompt) of the same environment, for a prompt that will not be trained.

        Returns None if environments have no shares.
        """

    def more(self) -> bool:
        """Return True if `next` has another prompt."""

    def learned(self, ended: Sequence[PromptOutcome]) -> None:
        """Report that a batch was trained, for a curriculum.

        Args:
            ended: Outcomes of the groups that ended since the last batch, in any order.
        """

    def facts(self) -> dict[str, float]:
        """Return metrics of the prompt order for this step; may be empty."""

    def task(self, prompt: int) -> Task:
        """Return the task of a prompt."""

    def state(self) -> dict[str, Any]:
        """Return the position in the stream for a checkpoint."""

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned.

        Raises:
            ConfigError: It belongs to other data, or to another order of them.
        """


class Saves(Protocol):
    """What a checkpoint needs of a learner."""

    async def save(self, directory: Path) -> None:
        """Save every rank's share of model, optimizer, scheduler and random state.

        Returns when all ranks have copied theirs to host memory; they write in the background. The call is on its way
        to the ranks before the first await.

        Raises:
            OSError: A disk refuses to create files.
        """

    async def written(self) -> Mapping[str, tuple[int, str]]:
        """Wait until every rank's files of the last `save` are safe on disk.

        Returns:
            Path -> (bytes, XXH3-128 in hexadecimal) of the files that the ranks hashed while they wrote them. The
            controller hashes the others.

        Raises:
            OSError: A disk refused.
        """


class Exports(Protocol):
    """What an export needs of a learner."""

    async def export(self, directory: Path) -> None:
        """Write a directory that transformers loads: weights, config, tokenizer.

        Raises:
            OSError: A disk refused. A part of the directory may be there.
        """


class Learner(Saves, Exports, Protocol):
    """All learner ranks as one: cluster/learner_group.py.

    Every async method raises LearnerDied if the process of a rank died, lost what it needs, or did not answer within
    timeouts.learner_s: all ranks must start again from a checkpoint. The methods' Raises have what comes besides.
    """

    version: int
    """Number of updates behind the current weights."""

    async def accumulate(self, part: TrainBatch) -> None:
        """Compute the gradients of a part of the batch that the next `step` completes; no weight changes.

        A `load` discards what was accumulated. Called only with pipeline.early_accumulation.

        Args:
            part: The part; `part.step` is the version.

        Raises:
            MethodBroken: As in `step`. All parts of the batch are discarded.
        """

    async def step(self, batch: TrainBatch) -> StepReport:
        """Make one optimizer update for each of `batch.updates`, except those whose gradient is not finite.

        The version counts the updates. After `accumulate` the batch is what its parts left, and update and report are
        of all of them. A gradient that is not finite raises nothing: `StepReport.finite` tells.

        Raises:
            MethodBroken: The user's estimator or policy loss failed.
        """

    async def publish(self, path: Path) -> str:
        """Write the full weights to a safetensors file, with Hugging Face names, and return their digest.

        Raises:
            OSError: The disk refused.
        """

    async def publish_changes(self, path: Path, base_version: int) -> DeltaDigest | None:
        """Write what changed since the last push. Called only with vllm.sync_backend = delta.

        Args:
            path: The file.
            base_version: Version of the last `publish` or `publish_changes`.

        Returns:
            None if a full push is needed instead.

        Raises:
            OSError: The disk refused.
        """

    async def score(self, sequences: list[list[int]]) -> list[Any]:
        """Return the log-probs of each sequence under the current weights.

        Returns:
            For each sequence [T-1] float32: the log-prob of every token except the first.
        """

    async def load(self, directory: Path) -> int:
        """Restore what `save` wrote, and return the version.

        Raises:
            ConfigError: The checkpoint is incomplete, or is of another model or method.
            CheckpointDamaged: The file of a rank is missing.
        """


class Exposes(Learner, Protocol):
    """A learner whose weights engines on the same devices map (weights/ipc)."""

    async def expose_trial(self) -> Exposed:
        """Expose a few random bytes on every rank's device."""

    async def expose(self, push: str, first: int) -> Exposed:
        """Expose the full weights from bucket `first` on, with Hugging Face names, as far as there are buffers.

        What was exposed before may be overwritten: every engine must have acknowledged it. Reasons why a rank cannot
        expose its weights are in the result.

        Args:
            push: The identity of the push.
            first: 0, then the number of the bucket after the last that was exposed.
        """


class Broadcasts(Learner, Protocol):
    """A learner that sends its weights to all engines at once."""

    async def open_broadcast(self, receivers: int) -> BroadcastRendezvous:
        """Open a group of rank 0 and this number of engine workers, and return where they meet, on rank 0's node.

        The group that was opened before is closed.
        """

    async def broadcast(self, push: str) -> BroadcastResult:
        """Send the full weights, with Hugging Face names, to all workers of the group. A fault of the group is in the
        result."""

    async def end_broadcast(self, push: str, why: str) -> None:
        """Make all who take part in a `broadcast` give it up."""
