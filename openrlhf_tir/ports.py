"""Ports: what the rooms need of each other, as Protocols. Each names its implementations; fakes in tests are held to the same.

episodes  -> Engine, Codec, EnvSession
pipeline  -> Prompts, Rollout, Learner, Publisher
weights   -> Learner
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol, Self

from .protocol import StepReply
from .types import Completion, Group, GroupKey, GroupMeta, PublishReport, Sampling, StepReport, Task, TrainBatch


class Engine(Protocol):
    """Prompt token ids -> sampled token ids: engines/vllm_engine.py (real), engines/torch_engine.py (deterministic, for tests),
    simulation/emulated_engine.py (sleeps like a cluster)."""

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        """Continue `token_ids`. Stop strings are included in the text; the log-probs are the sampler's, at temperature 1.

        Raises EngineError when the engine cannot answer. `Completion.versions` names, per token, the weights that sampled it.
        """


class Codec(Protocol):
    """Text <-> tokens. Special tokens in the text of tools are inert: `encode` never produces a special id, `encode_prompt` may."""

    def encode(self, text: str) -> list[int]: ...
    def encode_prompt(self, text: str) -> list[int]: ...
    def decode(self, token_ids: Sequence[int]) -> str: ...


class EnvSession(Protocol):
    """One trajectory's conversation with its environment; entered before `reset`, left when the trajectory ends. envs/session.py."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...
    async def reset(self) -> str:
        """The first observation. Raises EnvError, EnvTimeout or EnvFull."""

    async def step(self, action: str, *, step_id: int) -> StepReply:
        """Only trainable outcomes come back; EnvError and EnvTimeout are raised."""


class Rollout(Protocol):
    """Rollout actors behind a router. A payload is whatever stands for a Group: an object reference, or the Group itself."""

    async def run_group(self, key: GroupKey, task: Task) -> tuple[GroupMeta, Any]:
        """Raises InfraError when the actor died or the group could not be run at all."""

    async def fetch(self, payloads: Sequence[Any]) -> list[Group]:
        """The groups behind the payloads."""

    async def store(self, group: Group) -> Any:
        """A payload for a group that was read from a checkpoint."""

    def where(self, key: GroupKey) -> str:
        """The actor that a rolling group is at, for a person: "on rollout-0"."""

    def engine_stats(self) -> dict[str, float]:
        """Cheap figures for the metrics; may be empty. `depth = auto` looks at running and waiting [sequences] and preemptions [so far]."""


class Publisher(Protocol):
    def changing(self) -> AbstractAsyncContextManager[None]:
        """Held while the learner steps, and for nothing else: meanwhile nobody may ask it for weights or scores. Waits for an engine that joins."""

    async def publish(self, version: int, *, must_differ: bool = False) -> PublishReport:
        """All engines have the learner's weights and it was proved. `must_differ`: an update since the last push must have changed something.

        Raises WeightsUnverified when it was not proved, or when the weights are those of the last push though they `must_differ`."""


class Prompts(Protocol):
    """An ordered, resumable stream of prompts."""

    def next(self) -> tuple[int, int] | None:
        """(epoch, prompt), or None when all episodes are through."""

    def task(self, prompt: int) -> Task: ...
    def state(self) -> dict: ...
    def restore(self, state: dict) -> None: ...


class Learner(Protocol):
    version: int
    """Number of updates behind the current weights."""

    async def step(self, batch: TrainBatch) -> StepReport:
        """One optimiser update on the whole batch, or none when its gradient is not finite: then the version stays. Raises InfraError when a rank died."""

    async def publish(self, path: Path) -> str:
        """Write the full weights, HF names, as safetensors to `path`; return their digest."""

    async def score(self, sequences: list[list[int]]) -> list[Any]:
        """Log-prob of every token of each sequence but the first, under the current weights: list of [T-1] float32."""

    async def save(self, directory: Path) -> None:
        """Every rank's share of model, optimiser, scheduler and RNG into `directory`. Returns when all ranks have copied theirs to host
        memory; the call is on its way to them before the first await. They are written in the background."""

    async def written(self) -> None:
        """Every rank's files of the last `save` are safe on disk. Raises OSError when a disk refused."""

    async def load(self, directory: Path) -> int:
        """Restore what `save` wrote; returns the version."""

    async def export(self, directory: Path) -> None:
        """A directory that plain transformers loads: weights, config, tokenizer."""
