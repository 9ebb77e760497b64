"""Publisher: the learner's weights -> every engine, proved on each before anyone trains on what it samples.

    learner.publish(file) -> digest
        every engine, at once: update_weights(file, version, digest, canary)   transport proved by the digest
                               -> what the new weights sampled first
    learner.score(canary tokens) -> max_abs_diff                               load proved by the log-probs
        every engine: proved(version)      what it sampled since is let go
        or:           discard(why)         what it sampled since is lost; its owner starts another, which must `join`


Sees Protocols only: engines are Ray handles in a run and plain objects in tests. This is the 'file' transport, the one that has
been run; vLLM's nccl and ipc trainers drive VllmEngine's begin_update / receive / finish_update themselves, and the canary stays.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

import numpy as np

from ..errors import ConfigError, Diverged, EngineGone, InfraError, WeightsUnverified
from ..ports import Learner
from ..types import Completion, PublishReport
from .verify import Canary, max_abs_diff

SHARED_MEMORY = Path("/dev/shm")
CALIBRATION_FACTOR = 4.0
MIN_CALIBRATED = 1e-3
"""Nats; a tolerance calibrated on a few hundred tokens must leave room for rarer ones."""


class PushTarget(Protocol):
    """What a push needs of an engine. Each call raises EngineGone when its process died, which takes the engine out of the push."""

    async def update_weights(self, path: Path, version: int, digest: str, canary: Canary | None = None) -> list[Completion]:
        """The canary's completions. Raises WeightsUnverified when the file is not the announced one or did not load."""

    async def proved(self, version: int) -> None:
        """What was sampled by `version` may be used."""

    async def discard(self, why: str) -> None:
        """This engine holds unknown weights: nothing sampled by them is ever seen."""

    async def canary(self, prompt_ids: list[list[int]], max_tokens: int, seed: int) -> list[Completion]: ...


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
        self._digest: str | None = None
        self._file: Path | None = None
        self._version = 0
        self._changing = asyncio.Lock()

    async def calibrate(self) -> float:
        """Set the tolerance from engines that loaded the learner's weights from disk themselves: what is left is numerics.

        Call before the first push, when the tolerance is None (bf16). Returns the tolerance.
        """
        diffs = await self._differences(await asyncio.gather(*(e.canary(*self._canary()) for e in self.engines)))
        self.tolerance = max(CALIBRATION_FACTOR * max(diffs), MIN_CALIBRATED)
        return self.tolerance

    async def publish(self, version: int, *, must_differ: bool = False) -> PublishReport:
        """Push the learner's current weights as `version`. Nothing that an engine sampled by it is seen before it is proved there.

        An engine that it is not proved on is discarded, and in the report. Raises WeightsUnverified when the weights are those of the last push,
        if they `must_differ`. (They may be equal: a learning rate of 0 is a step like any other.)
        """
        start = time.monotonic()
        async with self._changing:
            await self._write(version, must_differ)
            worst, refused = await self._prove(list(self.engines))
        return PublishReport(version, time.monotonic() - start, self._digest, worst, len(refused))

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Held while the learner steps: meanwhile it can neither give its weights nor score what they sample.

        Never held over a drain. A drain waits for groups, the groups may wait for an engine, and that engine joins under this lock.
        """
        async with self._changing:
            yield

    async def join(self, engine: PushTarget) -> None:
        """Bring one new engine to the last push and prove it, before anything is sent to it. Raises WeightsUnverified.

        Between a step and the next push (a drain, or pipeline.push_every > 1) the learner has moved on and cannot score the last push: the engine gets
        the learner's current weights, which are younger than the others' and will be pushed to those as the same version.
        """
        async with self._changing:
            if self._file is None:
                return
            if self.learner.version > self._version:
                await self._write(self.learner.version, must_differ=False)
            _, refused = await self._prove([engine])
            if refused:
                raise WeightsUnverified(f"Version {self._version} is not proved on a new engine: {refused[0]}.")

    async def close(self) -> None:
        """Remove the last file."""
        shutil.rmtree(self.directory, ignore_errors=True)

    async def _write(self, version: int, must_differ: bool) -> None:
        """The learner's weights -> a file, which is the last push from now on; the one before it is removed. A newcomer may have had it written already."""
        if version == self._version and self._file is not None:
            return
        path = self.directory / f"v{version}.safetensors"
        if self._file is None:  # a process that was killed could not remove its last file
            shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True, exist_ok=True)
        digest = await self.learner.publish(path)
        if must_differ and digest == self._digest:
            raise WeightsUnverified(
                f"Version {version} has the weights of the push before it (digest {digest[:12]}), although its learning rate and gradient are not zero: "
                "the learner did not step, or published too early."
            )
        old, self._file, self._digest, self._version = self._file, path, digest, version
        if old not in (None, path):
            old.unlink(missing_ok=True)

    def _canary(self) -> Canary:
        return Canary(self.canary_prompts, self.canary_tokens, self.seed + self._version)

    async def _prove(self, engines: list[PushTarget]) -> tuple[float, dict[int, str]]:
        """Last push -> engines -> canary -> verdict: the worst difference of those proved, and why others were refused, by index.

        One scoring call for all. Engines that died meanwhile are in neither; whoever replaces them is proved by `join`.
        """
        version = self._version
        calls = [e.update_weights(self._file, version, self._digest, self._canary()) for e in engines]
        results = await asyncio.gather(*calls, return_exceptions=True)
        sampled, refused = {}, {}
        for i, result in enumerate(results):
            if isinstance(result, EngineGone):
                continue
            if isinstance(result, BaseException):
                if not isinstance(result, InfraError):
                    raise result
                refused[i] = str(result)
            else:
                sampled[i] = result
        diffs = dict(zip(sampled, await self._differences(list(sampled.values())), strict=True))
        for i, diff in diffs.items():
            if any((c.versions != version).any() for c in sampled[i]):
                refused[i] = f"{diff:.3g} nats, tokens of another version"
            elif not diff <= self.tolerance:
                refused[i] = (
                    f"{diff:.3g} nats: the file arrived (digest {self._digest[:12]}) but is not what the engine samples from; accepted is "
                    f"vllm.canary_tolerance = {self.tolerance:g}. Raise it only for lower precision"
                )
        proved = [i for i in diffs if i not in refused]
        verdicts = [engines[i].proved(version) for i in proved] + [engines[i].discard(f"Version {version}: {why}.") for i, why in refused.items()]
        await asyncio.gather(*map(_unless_gone, verdicts))
        return max((diffs[i] for i in proved), default=0.0), refused

    async def _differences(self, sampled: list[list[Completion]]) -> list[float]:
        """Canary completions of each engine -> its largest difference in nats."""
        sequences = [[*prompt, *c.token_ids.tolist()] for cs in sampled for prompt, c in zip(self.canary_prompts, cs, strict=True)]
        if not sequences:
            return []
        scored = await self.learner.score(sequences)
        if not all(np.isfinite(s).all() for s in scored):
            raise Diverged(
                f"The learner's own log-probs of the canary prompts are not finite with the weights of version {self._version}: the weights are broken. "
                "actor.learning_rate is too high, or a reward is not finite; the last checkpoint holds weights from before."
            )
        scores = iter(scored)
        # Scores are of every token but the sequence's first: the response starts at index len(prompt) - 1.
        return [max_abs_diff(cs, [np.asarray(next(scores))[len(prompt) - 1 :] for prompt in self.canary_prompts]) for cs in sampled]


async def _unless_gone(call: Awaitable[None]) -> None:
    with suppress(EngineGone):
        await call
