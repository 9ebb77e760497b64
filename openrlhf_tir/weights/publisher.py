"""Publisher: the learner's weights -> every engine, proved on each before anyone trains on what it samples.

    learner.publish(file) -> digest
        every engine, at once: update_weights(file, version, digest)      transport proved by the digest
        every engine, at once: canary()                                   tokens sampled by the new weights
    learner.score(canary tokens) -> check_canary                          load proved by the log-probs

Sees Protocols only: engines are Ray handles in a run and plain objects in tests. This is the 'file' transport, the one that has
been run; vLLM's nccl and ipc trainers drive VllmEngine's begin_update / receive / finish_update themselves, and the canary stays.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from ..errors import ConfigError, WeightsUnverified
from ..learner.learner import Learner
from ..types import Completion
from .verify import check_canary

SHARED_MEMORY = Path("/dev/shm")


class PushTarget(Protocol):
    """What a push needs of an engine. `update_weights` raises WeightsUnverified when the file is not the announced one."""

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
    return (SHARED_MEMORY if fits else run_dir) / f"tir_weights_{run_dir.name}"


class WeightPublisher:
    """One per run. `engines` may be changed between pushes: a new engine gets the next push like the others."""

    def __init__(
        self,
        learner: Learner,
        engines: Sequence[PushTarget],
        directory: Path,
        canary_prompts: list[list[int]],
        *,
        tolerance: float,
        canary_tokens: int = 16,
        seed: int = 0,
    ) -> None:
        if not canary_prompts:
            raise ConfigError("A weight push without a canary prompt proves nothing. Give at least one tokenised prompt.")
        self.learner, self.engines, self.directory = learner, list(engines), directory
        self.canary_prompts, self.canary_tokens, self.tolerance, self.seed = canary_prompts, canary_tokens, tolerance, seed
        self.failed: list[int] = []
        """Indices of the engines for which the last push was not proved: they hold unknown weights and must be started again."""
        self._digest: str | None = None
        self._file: Path | None = None

    async def publish(self, version: int) -> PublishReport:
        """Push the learner's current weights as `version`. Raises WeightsUnverified; then nothing sampled since may be trained."""
        start = time.monotonic()
        self.failed = []
        path = self.directory / f"v{version}.safetensors"
        self.directory.mkdir(parents=True, exist_ok=True)
        digest = await self.learner.publish(path)
        if digest == self._digest:
            raise WeightsUnverified(f"Version {version} has the weights of the push before it (digest {digest[:12]}): the learner did not step, or published too early.")
        self._digest = digest
        await self._on_all(version, [e.update_weights(path, version, digest) for e in self.engines])
        if self._file not in (None, path):
            self._file.unlink(missing_ok=True)
        self._file = path
        worst = await self._canary(version)
        return PublishReport(version, time.monotonic() - start, digest, worst)

    async def close(self) -> None:
        """Remove the last file."""
        shutil.rmtree(self.directory, ignore_errors=True)

    async def _canary(self, version: int) -> float:
        """-> worst difference. One scoring call for all engines."""
        sampled = await self._on_all(version, [e.canary(self.canary_prompts, self.canary_tokens, self.seed + version) for e in self.engines])
        sequences = [[*prompt, *c.token_ids.tolist()] for cs in sampled for prompt, c in zip(self.canary_prompts, cs, strict=True)]
        scores = iter(await self.learner.score(sequences))
        verdicts = [
            # Scores are of every token but the sequence's first: the response starts at index len(prompt) - 1.
            check_canary(cs, [np.asarray(next(scores))[len(prompt) - 1 :] for prompt in self.canary_prompts], self.tolerance)
            for cs in sampled
        ]
        self.failed = [i for i, v in enumerate(verdicts) if not v.ok]
        stale = [i for i, cs in enumerate(sampled) for c in cs if (c.versions != version).any()]
        if self.failed or stale:
            self.failed = sorted({*self.failed, *stale})
            diffs = ", ".join(f"engine {i}: {verdicts[i].max_abs_diff:.3g} nats, versions {sorted({int(v) for c in sampled[i] for v in c.versions})}" for i in self.failed)
            raise WeightsUnverified(
                f"Version {version} arrived (digest {self._digest[:12]}) but is not what these engines sample from: {diffs}; "
                f"accepted is vllm.canary_tolerance = {self.tolerance:g}. Start them again; raise the tolerance only for lower precision."
            )
        return max(v.max_abs_diff for v in verdicts)

    async def _on_all(self, version: int, calls: list) -> list:
        """All engines at once; every one gets its answer before the first failure is raised, so that none is left half pushed."""
        results = await asyncio.gather(*calls, return_exceptions=True)
        errors = {i: r for i, r in enumerate(results) if isinstance(r, BaseException)}
        if errors:
            self.failed = sorted(errors)
            said = "; ".join(f"engine {i}: {e or type(e).__name__}" for i, e in errors.items())
            raise WeightsUnverified(f"Version {version} did not reach {len(errors)} of {len(calls)} engines. {said}") from next(iter(errors.values()))
        return results
