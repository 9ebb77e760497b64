"""Publisher: the learner's weights -> every engine, proved on each before anyone trains on what it samples.

    learner.publish(file) -> digest
        every engine, at once: update_weights(file, version, digest, canary)   transport proved by the digest
                               -> what the new weights sampled first
    learner.score(canary tokens) -> by how much they differ                    load proved by the log-probs
        every engine: proved(version)      what it sampled since is let go
        or:           discard(why)         what it sampled since is lost; its owner starts another, which must `join`


How the weights get there is the transport's: by file (file_transport.py), or broadcast to all at once
(broadcast/transport.py). Digest, canary and verdict are the same. Sees Protocols only: engines are Ray handles in a run
and plain objects in tests.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import numpy as np

from ..deadlines import Deadline
from ..errors import ConfigError, DeadlineMissed, Diverged, EngineGone, InfraError, WeightsUnverified
from ..ports import Learner
from ..types import Canary, Completion, PublishReport
from .file_transport import FileTransport
from .transport import PushTarget, Results, Transport, in_time, name_of
from .verify import Disagreement, Tolerance, disagreement

log = logging.getLogger(__name__)
CEILING = 0.5
"""Nats; the default of vllm.canary_ceiling."""
PUSH = Deadline(600.0, "timeouts.push_s")
LIKELY_CAUSES = (
    "Likely causes: engine and learner loaded different models or tokenizers; a quantised engine (vllm.dtype, the"
    " model's quantization_config); other rope settings or a sliding window on one side; a tied lm_head that kept its"
    " old copy; fp16 that overflows (use ds.param_dtype = 'bf16')."
)
T = TypeVar("T")


class WeightPublisher:
    """One per run. `engines` is looked at for every push: the owner adds those that `join` proved, removes the dead."""

    def __init__(
        self,
        learner: Learner,
        engines: Sequence[PushTarget],
        directory: Path,
        canary_prompts: list[list[int]],
        *,
        tolerance: Tolerance | float | None,
        canary_tokens: int = 16,
        seed: int = 0,
        deadline: Deadline = PUSH,
        ceiling: float = CEILING,
        delta: bool = False,
        transport: Transport | None = None,
        place: Callable[[], Path] | None = None,
    ) -> None:
        """`tolerance`: a number holds for every token; None: `calibrate` comes first. `ceiling`: of a calibrated one,
        in nats. `deadline`: for an engine's part of a push. `transport`: by files in `directory` if not given, with
        `delta` what changed only, where that is possible. `place`: that directory as of now, where it may become
        another as engines come to other nodes."""
        if not canary_prompts:
            raise ConfigError(
                "A weight push without a canary prompt proves nothing. Give at least one tokenised prompt."
            )
        self.learner, self.engines = learner, engines
        self.transport = transport or FileTransport(learner, directory, delta=delta, deadline=deadline, place=place)
        self.canary_prompts, self.canary_tokens, self.seed = canary_prompts, canary_tokens, seed
        self.tolerance = Tolerance.exact(tolerance) if isinstance(tolerance, float) else tolerance
        self.deadline, self.ceiling = deadline, ceiling
        self._ahead: int | None = None
        """The version that a newcomer has had written, and that is still to be pushed to the others."""
        self._outdated = False
        """The learner was fine-tuned since the last file was written: it cannot score that one any more, though its
        version is the same."""
        self._changing = asyncio.Lock()

    async def calibrate(self) -> Tolerance:
        """Set the tolerance from engines that loaded the learner's weights from disk themselves: what is left is
        numerics.

        Call before the first push, when the tolerance is None (bf16). An engine that differs by more than the ceiling
        is discarded. Raises ConfigError when all do: then the two sides do not have the same model. WeightsUnverified
        when no engine answers."""
        engines = list(self.engines)
        calls = [self._in_time(e.canary(*self._canary()), f"The canary of {name_of(e)}") for e in engines]
        results = await asyncio.gather(*calls, return_exceptions=True)
        sampled, refused = _sort(results)
        found = dict(zip(sampled, await self._differences(list(sampled.values())), strict=True))
        wrong = {
            i: f"{name_of(engines[i])} and the learner differ by {d}"
            for i, d in found.items()
            if not max(d.median, d.high) <= self.ceiling
        }
        if wrong and len(wrong) == len(found):
            raise ConfigError(
                f"{next(iter(wrong.values()))} on the weights that both loaded from disk; more than vllm.canary_ceiling"
                f" = {self.ceiling:g} is no numerics. {LIKELY_CAUSES}"
            )
        for i, why in (refused | wrong).items():
            await self._tell(engines[i], engines[i].discard(f"Before the first push: {why}. {LIKELY_CAUSES}"))
        if not found:
            raise WeightsUnverified(
                f"No engine answered the canary ({'; '.join(refused.values()) or 'all died'}). See the actors' logs."
            )
        self.tolerance = Tolerance.calibrated([d for i, d in found.items() if i not in wrong], self.ceiling)
        return self.tolerance

    async def publish(self, version: int, *, must_differ: bool = False) -> PublishReport:
        """Push the learner's current weights as `version`. Nothing that an engine sampled by it is seen before it is
        proved there.

        An engine that it is not proved on is discarded, and in the report. Raises WeightsUnverified when the weights
        are those of the last push, if they `must_differ`. (They may be equal: a learning rate of 0 is a step like any
        other.)
        """
        start = time.monotonic()
        async with self._changing:
            t = self.transport
            t.begin()
            # fine-tuning changes the weights without a new version: written anew whenever asked to
            if version != self._ahead:
                await t.take(version, must_differ)
                self._outdated = False
            self._ahead = None
            worst, refused = await self._prove(list(self.engines))
            return PublishReport(
                version, time.monotonic() - start, t.digest or "", worst, len(refused), t.seconds, t.nbytes, t.delta
            )

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Held while the learner steps: meanwhile it can neither give its weights nor score what they sample.

        Never held over a drain. A drain waits for groups, the groups may wait for an engine, and that engine joins
        under this lock."""
        async with self._changing:
            yield

    @asynccontextmanager
    async def fine_tuning(self) -> AsyncIterator[None]:
        """`changing`, for a step that moves the weights and leaves the version as it is."""
        async with self._changing:
            self._outdated, self._ahead = True, None
            yield

    async def join(self, engine: PushTarget) -> None:
        """Bring one new engine to the last push and prove it, before anything is sent to it. Raises WeightsUnverified.

        Between a step and the next push (a drain, pipeline.push_every > 1, fine-tuning) the learner has moved on and
        cannot score the last push: the engine gets the learner's current weights, which are younger than the others'
        and will be pushed to those as the same version."""
        async with self._changing:
            if not self.transport.begun:
                return
            if self.learner.version > self.transport.version or self._outdated:
                await self.transport.take(self.learner.version, must_differ=False, full=True)
                self._outdated, self._ahead = False, self.learner.version
            await self.transport.whole()
            _, refused = await self._prove([engine])
            if refused:
                raise WeightsUnverified(
                    f"Version {self.transport.version} is not proved on a new engine: {refused[0]}."
                )

    async def close(self) -> None:
        """Remove what the last push left."""
        self.transport.remove()

    def _canary(self) -> Canary:
        return Canary(self.canary_prompts, self.canary_tokens, self.seed + self.transport.version)

    async def _prove(self, engines: list[PushTarget]) -> tuple[float, dict[int, str]]:
        """Last push -> engines -> canary -> verdict: the worst difference of those proved, and why others were refused,
        by index.

        One scoring call for all. Engines that died meanwhile are in neither; whoever replaces them is proved by `join`.
        """
        version, tolerance = self.transport.version, self.tolerance
        assert tolerance is not None, "calibrate() comes first"
        results = await self.transport.sent(engines, self._canary())
        sampled, refused = _sort(results)
        diffs = dict(zip(sampled, await self._differences(list(sampled.values())), strict=True))
        differ = [i for i, d in diffs.items() if not tolerance.accepts(d)]
        for i, diff in diffs.items():
            if any((c.versions != version).any() for c in sampled[i]):
                refused[i] = f"{diff}, tokens of another version"
            elif i in differ:
                refused[i] = (
                    f"{diff}: the weights arrived (digest {str(self.transport.digest)[:12]}) but is not what the engine"
                    f" samples from; accepted is {tolerance} (vllm.canary_tolerance). Raise it only for lower precision"
                    + (f". No engine agrees. {LIKELY_CAUSES}" if len(differ) == len(diffs) else "")
                )
        proved = [i for i in diffs if i not in refused]
        verdicts = [self._tell(engines[i], engines[i].proved(version)) for i in proved]
        verdicts += [
            self._tell(engines[i], engines[i].discard(f"Version {version}: {why}.")) for i, why in refused.items()
        ]
        await asyncio.gather(*verdicts)
        return max((diffs[i].most for i in proved), default=0.0), refused

    async def _in_time(self, call: Awaitable[T], what: str) -> T:
        return await in_time(self.deadline, call, what)

    async def _tell(self, engine: PushTarget, verdict: Awaitable[None]) -> None:
        """A verdict that does not get through leaves completions waiting for it: then the engine is discarded."""
        with suppress(EngineGone):
            try:
                await self._in_time(verdict, f"The verdict on version {self.transport.version} to {name_of(engine)}")
            except DeadlineMissed as e:
                with suppress(DeadlineMissed):
                    await self._in_time(engine.discard(str(e)), f"The end of {name_of(engine)}")

    async def _differences(self, sampled: list[list[Completion]]) -> list[Disagreement]:
        """Canary completions of each engine -> by how much it differs from the learner."""
        sequences = [
            [*prompt, *c.token_ids.tolist()]
            for cs in sampled
            for prompt, c in zip(self.canary_prompts, cs, strict=True)
        ]
        if not sequences:
            return []
        scored = await self.learner.score(sequences)
        if not all(np.isfinite(s).all() for s in scored):
            raise Diverged(
                "The learner's own log-probs of the canary prompts are not finite with the weights of version"
                f" {self.transport.version}: the weights are broken. actor.learning_rate is too high, or a reward is"
                " not finite; the last checkpoint holds weights from before."
            )
        scores = iter(scored)
        # Scores are of every token but the sequence's first: the response starts at index len(prompt) - 1.
        return [
            disagreement(cs, [np.asarray(next(scores))[len(prompt) - 1 :] for prompt in self.canary_prompts])
            for cs in sampled
        ]


def _sort(results: Results) -> tuple[dict[int, list[Completion]], dict[int, str]]:
    """What each engine sampled, and why it could not; those that are gone are in neither. Raises what is a bug."""
    sampled, refused = {}, {}
    for i, result in enumerate(results):
        if isinstance(result, EngineGone):
            continue
        if isinstance(result, InfraError):
            refused[i] = str(result).rstrip(".")
        elif isinstance(result, BaseException):
            raise result
        else:
            sampled[i] = result
    return sampled, refused
