"""Publisher: the learner's weights -> every engine, proved on each before anyone trains on what it samples.

    learner.publish(file) -> digest
        every engine, at once: update_weights(file, version, digest)      transport proved by the digest
        every engine, at once: canary()                                   tokens sampled by the new weights
    learner.score(canary tokens) -> max_abs_diff                          load proved by the log-probs

Sees Protocols only: engines are Ray handles in a run and plain objects in tests. This is the 'file' transport, the one that has
been run; vLLM's nccl and ipc trainers drive VllmEngine's begin_update / receive / finish_update themselves, and the canary stays.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import ConfigError, EngineGone, WeightsUnverified
from ..learner.learner import Learner
from ..types import Completion
from .verify import max_abs_diff

SHARED_MEMORY = Path("/dev/shm")
CALIBRATION_FACTOR = 4.0
MIN_CALIBRATED = 1e-3
"""Nats; a tolerance calibrated on a few hundred tokens must leave room for rarer ones."""


class PushTarget(Protocol):
    """What a push needs of an engine. `update_weights` raises WeightsUnverified when the file is not the announced one; both raise
    EngineGone when its process died, which takes the engine out of the push."""

    async def update_weights(self, path: Path, version: int, digest: str) -> None: ...
    async def canary(self, prompt_ids: list[list[int]], max_tokens: int, seed: int) -> list[Completion]: ...


@dataclass(frozen=True, slots=True)
class PublishReport:
    """`canary_max_diff` in nats, the worst engine's."""

    version: int
    seconds: float
    digest: str
    canary_max_diff: float


def push_directory(run_dir: Path, model_bytes: int, *, one_node: bool = True) -> Path:
    """Where the file goes: shared memory when it holds two of them (old and new), else the run's directory.

    With engines on several nodes it is always the run's directory, which must then be on a file system that all of them see.
    """
    fits = one_node and SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free >= 2 * model_bytes
    name = f"tir_weights_{run_dir.name}_{hashlib.sha256(str(run_dir).encode()).hexdigest()[:8]}"
    return (SHARED_MEMORY if fits else run_dir) / name


class WeightPublisher:
    """One per run. `engines` is looked at anew for every push: the owner adds engines that `join` proved and removes dead ones."""

    def __init__(
        self,
        learner: Learner,
        engines: Sequence[PushTarget],
        directory: Path,
        canary_prompts: list[list[int]],
        *,
        tolerance: float | None,
        canary_tokens: int = 16,
        seed: int = 0,
    ) -> None:
        if not canary_prompts:
            raise ConfigError("A weight push without a canary prompt proves nothing. Give at least one tokenised prompt.")
        self.learner, self.engines, self.directory = learner, engines, directory
        self.canary_prompts, self.canary_tokens, self.tolerance, self.seed = canary_prompts, canary_tokens, tolerance, seed
        self.failed: list[int] = []
        """Indices of the engines for which the last push was not proved: they hold unknown weights and must be started again."""
        self._digest: str | None = None
        self._file: Path | None = None
        self._version = 0
        self._changing = asyncio.Lock()

    async def calibrate(self) -> float:
        """Set the tolerance from engines that loaded the learner's weights from disk themselves: what is left is numerics.

        Call before the first push, when the tolerance is None (bf16). Returns the tolerance.
        """
        diffs, _ = await self._compare(list(self.engines), self._version)
        self.tolerance = max(CALIBRATION_FACTOR * max(diffs), MIN_CALIBRATED)
        return self.tolerance

    async def publish(self, version: int) -> PublishReport:
        """Push the learner's current weights as `version`. Raises WeightsUnverified; then nothing sampled since may be trained."""
        start = time.monotonic()
        path = self.directory / f"v{version}.safetensors"
        self.directory.mkdir(parents=True, exist_ok=True)
        digest = await self.learner.publish(path)
        if digest == self._digest:
            raise WeightsUnverified(
                f"Version {version} has the weights of the push before it (digest {digest[:12]}): the learner did not step, or published too early."
            )
        old, self._file, self._digest, self._version = self._file, path, digest, version
        worst = await self._prove(list(self.engines))
        if old not in (None, path):
            old.unlink(missing_ok=True)
        return PublishReport(version, time.monotonic() - start, digest, worst)

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Held from the learner's step to the end of its push: meanwhile the learner cannot score what the last push samples."""
        async with self._changing:
            yield

    async def join(self, engine: PushTarget) -> None:
        """Bring one new engine to the last push and prove it, before anything is sent to it. Raises like `publish`."""
        async with self._changing:
            if self._file is not None:
                await self._prove([engine])

    async def close(self) -> None:
        """Remove the last file."""
        shutil.rmtree(self.directory, ignore_errors=True)

    async def _prove(self, engines: list[PushTarget]) -> float:
        """Last push -> engines -> canary -> worst difference. One scoring call for all. Engines that died meanwhile are left out."""
        version, self.failed = self._version, []
        alive = await self._on_all(engines, [e.update_weights(self._file, version, self._digest) for e in engines])
        diffs, stale = await self._compare([e for e, _ in alive], version)
        self.failed = sorted(stale | {i for i, diff in enumerate(diffs) if not diff <= self.tolerance})
        if self.failed:
            said = ", ".join(f"engine {i}: {diffs[i]:.3g} nats{', tokens of another version' if i in stale else ''}" for i in self.failed)
            raise WeightsUnverified(
                f"Version {version} arrived (digest {self._digest[:12]}) but is not what these engines sample from: {said}; "
                f"accepted is vllm.canary_tolerance = {self.tolerance:g}. Start them again; raise the tolerance only for lower precision."
            )
        return max(diffs, default=0.0)

    async def _compare(self, engines: list[PushTarget], version: int) -> tuple[list[float], set[int]]:
        """Canary on all engines, one scoring call -> largest difference in nats per engine, and which sampled with another version.

        No engine alive: nothing to compare; whoever replaces them is proved by `join` before anything is sent to it.
        """
        alive = await self._on_all(engines, [e.canary(self.canary_prompts, self.canary_tokens, self.seed + version) for e in engines])
        sampled = [completions for _, completions in alive]
        sequences = [[*prompt, *c.token_ids.tolist()] for cs in sampled for prompt, c in zip(self.canary_prompts, cs, strict=True)]
        if not sequences:
            return [], set()
        scores = iter(await self.learner.score(sequences))
        # Scores are of every token but the sequence's first: the response starts at index len(prompt) - 1.
        diffs = [max_abs_diff(cs, [np.asarray(next(scores))[len(prompt) - 1 :] for prompt in self.canary_prompts]) for cs in sampled]
        return diffs, {i for i, cs in enumerate(sampled) for c in cs if (c.versions != version).any()}

    async def _on_all(self, engines: list[PushTarget], calls: list) -> list[tuple[PushTarget, Any]]:
        """All engines at once -> (engine, result) of those alive. Every one has answered before the first failure is raised."""
        results = await asyncio.gather(*calls, return_exceptions=True)
        errors = {i: r for i, r in enumerate(results) if isinstance(r, BaseException) and not isinstance(r, EngineGone)}
        alive = [(e, r) for e, r in zip(engines, results, strict=True) if not isinstance(r, BaseException)]
        if errors:
            self.failed = sorted(errors)
            said = "; ".join(f"engine {i}: {e or type(e).__name__}" for i, e in errors.items())
            raise WeightsUnverified(f"Version {self._version} did not reach {len(results) - len(alive)} of {len(results)} engines. {said}")
        return alive
