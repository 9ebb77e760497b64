"""Publisher: the learner's weights -> every engine, proved on each before anyone trains on what it samples.

    learner.publish(file) -> digest
        every engine, at once: update_weights(file, version, digest, canary)
            digest of what arrived                    = what was sent
            read-back of what the model holds         = what was sent, tensor by tensor, on every worker
            -> log-probs of the canary's texts        by what is computed
    learner.score(texts) -> how far the engine is from the learner (verify.py)
        accepted: every engine: proved(version)       what it sampled since is let go
        else:     other texts, pooled with the first  -> accepted, or
                  a full push, all of this again      -> accepted, or
                  discard(why)                        what it sampled since is lost; its owner starts another

A push that is right fails only if it fails on two sets of texts, in two pushes. How the weights get there is the
transport's: by file (file_transport.py), or broadcast to all at once (broadcast/transport.py). Sees Protocols only:
engines are Ray handles in a run and plain objects in tests.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from ..deadlines import Deadline
from ..errors import (
    ConfigError,
    DeadlineMissed,
    Diverged,
    EngineGone,
    InfraError,
    LearnerDied,
    WeightsMisloaded,
    WeightsUnverified,
)
from ..ports import Learner
from ..types import Canary, Completion, PublishReport
from .file_transport import FileTransport
from .transport import PushTarget, Results, Transport, in_time, name_of, same_weights
from .verify import OUTLIER, Disagreement, Evidence, Reference, disagreement, evidence

log = logging.getLogger(__name__)
CEILING = 0.5
"""Nats; the default of vllm.canary_ceiling."""
PUSH = Deadline(600.0, "timeouts.push_s")
TEXTS = 8
"""Texts of one round of a proof. The second round has as many others, if there are that many prompts."""
TEXT_TOKENS = 96
"""Tokens of a prompt that a proof scores, its last ones: what it costs does not grow with the prompts."""
SECOND_SEED = 1_000_003
"""Added to the seed in the second round: with the same texts, the tokens sampled after them are others."""
LIKELY_CAUSES = (
    "Likely causes: engine and learner loaded different models or tokenizers; a quantised engine (vllm.dtype, the"
    " model's quantization_config); other rope settings or a sliding window on one side; a tied lm_head that kept its"
    " old copy; fp16 that overflows (use ds.param_dtype = 'bf16')."
)
T = TypeVar("T")


@dataclass
class Trial:
    """One engine's proof of one push, over all its rounds.

    Attributes:
        engine: The engine.
        found: The evidence of all rounds since the last push to it, pooled.
        disagreement: What the evidence amounts to; None before the first answer.
        excess: The disagreement in units of what is accepted.
        refused: Why the engine is not proved, in words; None once it is.
        gone: The engine's process died: whoever replaces it is proved on its own.
        misloaded: What the read-back found; there is no second round then.
        hopeless: Another push cannot help.
    """

    engine: PushTarget
    found: Evidence | None = None
    disagreement: Disagreement | None = None
    excess: float = np.inf
    refused: str | None = None
    gone: bool = False
    misloaded: bool = False
    hopeless: bool = False


class WeightPublisher:
    """One per run. `engines` is looked at for every push: the owner adds those that `join` proved, removes the dead."""

    def __init__(
        self,
        learner: Learner,
        engines: Sequence[PushTarget],
        directory: Path,
        canary_prompts: list[list[int]],
        *,
        tolerance: Reference | float | None,
        canary_tokens: int = 16,
        seed: int = 0,
        deadline: Deadline = PUSH,
        ceiling: float = CEILING,
        delta: bool = False,
        transport: Transport | None = None,
        place: Callable[[], Path] | None = None,
    ) -> None:
        """Make a publisher; nothing is pushed yet.

        Args:
            learner: Who has the weights.
            engines: The live engines. The owner adds those that `joining` proved and removes the dead.
            directory: Where files for the engines go, if `transport` is not given.
            canary_prompts: Tokenised prompts; the first TEXTS are scored at every push, the next ones in a second
                round.
            tolerance: Threshold of the mean difference in nats; the reference of an earlier publisher of the same
                run; or None: `calibrate` comes before the first push.
            canary_tokens: Tokens that an engine samples after each text.
            seed: Seed of these tokens.
            deadline: Deadline of an engine's part of a push.
            ceiling: Largest threshold in nats, however large the reference.
            delta: Write only what changed, where that is possible.
            transport: How weights get to engines; files if not given.
            place: Return the directory as of now, where engines may come to other nodes.
        """
        if not canary_prompts:
            raise ConfigError(
                "A weight push without a canary prompt proves nothing. Give at least one tokenised prompt."
            )
        self.learner, self.engines = learner, engines
        self.transport = transport or FileTransport(learner, directory, delta=delta, deadline=deadline, place=place)
        texts = [prompt[-TEXT_TOKENS:] for prompt in canary_prompts]
        self.rounds = [texts[:TEXTS], texts[TEXTS : 2 * TEXTS] or texts[:TEXTS]]
        """The texts of the first and of the second round of a proof."""
        self.canary_tokens = canary_tokens
        self.seed = seed
        self.reference = tolerance if isinstance(tolerance, Reference) else Reference(ceiling, fixed=tolerance)
        self.deadline = deadline
        self.ceiling = ceiling
        self._previous: list[np.ndarray] | None = None
        """The learner's log-probs of the first round's texts by the version of the last push."""
        self._before: list[np.ndarray] | None = None
        """The same by the version before it: what `behind` compares with."""
        self._scored_version: int | None = None
        self._repeats = 0
        """Second rounds of the last push."""
        self._pushes_repeated = 0
        """Engines that the last push was repeated to."""
        self._pushed_digest: str | None = None
        """The digest of the weights that the members were sent last. A newcomer may have been sent later ones."""
        self._ahead: int | None = None
        """The version that a newcomer has had written, and that is still to be pushed to the others."""
        self._outdated = False
        """The learner was fine-tuned since the last file was written: it cannot score that one any more, though its
        version is the same."""
        self._changing = asyncio.Lock()

    async def calibrate(self) -> Reference:
        """Set the reference from engines that loaded the learner's weights from disk themselves: what is left is
        numerics.

        Call before the first push if no tolerance was given. An engine that differs by more than the ceiling is
        discarded.

        Raises:
            ConfigError: All engines do: the two sides do not have the same model.
            WeightsUnverified: No engine answered.
        """
        async with self._changing:
            engines = list(self.engines)
            # Both rounds' texts: the reference should be of more texts than a push is judged by.
            trials = [Trial(engine) for engine in engines]
            for number in range(len(self.rounds)):
                await self._score(trials, number, await self._sampled([t.engine for t in trials], number))
            answered = [t for t in trials if t.disagreement is not None]
            for t in answered:
                assert t.disagreement is not None
                t.refused = None  # no reference to judge by yet: only the ceiling holds
                if not max(t.disagreement.level, t.disagreement.most / OUTLIER) <= self.ceiling:
                    t.refused = f"{name_of(t.engine)} and the learner differ by {t.disagreement}"
            wrong = [t for t in answered if t.refused]
            if answered and len(wrong) == len(answered):
                raise ConfigError(
                    f"{wrong[0].refused} on the weights that both loaded from disk; more than vllm.canary_ceiling"
                    f" = {self.ceiling:g} is no numerics. {LIKELY_CAUSES}"
                )
            for t in trials:
                if t.refused and not t.gone:
                    await self._tell(t.engine, t.engine.discard(f"Before the first push: {t.refused}. {LIKELY_CAUSES}"))
            if not answered:
                why = "; ".join(t.refused for t in trials if t.refused and not t.gone) or "all died"
                raise WeightsUnverified(f"No engine answered the canary ({why}). See the actors' logs.")
            self.reference.accepted([t.disagreement.level for t in answered if t.disagreement and not t.refused])
            return self.reference

    async def publish(self, version: int, *, must_differ: bool = False) -> PublishReport:
        """Push the learner's current weights as `version`. Nothing that an engine sampled by it is seen before it is
        proved there.

        An engine that it is not proved on is discarded, and in the report.

        Args:
            version: Number of learner updates behind the weights.
            must_differ: The weights may not be those of the last push. (They may be equal: a learning rate of 0 is a
                step like any other.)

        Raises:
            WeightsUnverified: The weights are those of the last push, and `must_differ`.
        """
        start = time.monotonic()
        async with self._changing:
            t = self.transport
            t.begin()
            differs_from = self._pushed_digest if must_differ else None
            # fine-tuning changes the weights without a new version: written anew whenever asked to
            if version != self._ahead:
                await t.take(version, differs_from)
                self._outdated = False
            elif t.digest is not None and t.digest == differs_from:
                raise WeightsUnverified(same_weights(version, t.digest))
            self._ahead = None
            trials = await self._prove(list(self.engines))
            self._pushed_digest = t.digest or self._pushed_digest
            return self._report(version, time.monotonic() - start, trials)

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

    @asynccontextmanager
    async def joining(self, engine: PushTarget) -> AsyncIterator[None]:
        """Bring one new engine to the learner's weights and prove it; inside the block it may become a member.

        The lock is held until the block ends, so that no push begins between the proof and the membership: otherwise
        the engine could be admitted with a proof of the push before. The block must not await.

        Between a step and the next push (a drain, pipeline.push_every > 1, fine-tuning) the learner has moved on and
        cannot score the last push: the engine gets the learner's current weights, which are younger than the others'
        and will be pushed to those as the same version. The same if nothing was pushed yet: at the start, and after
        the learner was started again, when the engine's own weights are of nobody knows which version.

        Raises:
            WeightsUnverified: The engine does not hold the weights.
        """
        async with self._changing:
            if not self.transport.begun or self.learner.version > self.transport.version or self._outdated:
                await self.transport.take(self.learner.version, None, full=True)
                self._outdated, self._ahead = False, self.learner.version
            await self.transport.whole()
            [trial] = await self._prove([engine])
            if trial.gone:
                raise EngineGone(f"{name_of(engine)} died while version {self.transport.version} was pushed to it.")
            if trial.refused:
                raise WeightsUnverified(
                    f"Version {self.transport.version} is not proved on a new engine: {trial.refused}."
                )
            yield

    async def join(self, engine: PushTarget, admit: Callable[[], None] = lambda: None) -> None:
        """Prove one new engine by `joining` and call `admit` in the same step."""
        async with self.joining(engine):
            admit()

    async def close(self) -> None:
        """Remove what the last push left."""
        self.transport.remove()

    def _canary(self, number: int) -> Canary:
        """Return what an engine computes in round `number` (0 or 1) of a proof."""
        return Canary(
            self.rounds[number], self.canary_tokens, self.seed + self.transport.version + number * SECOND_SEED
        )

    async def _prove(self, engines: list[PushTarget]) -> list[Trial]:
        """Send the last push to engines, prove it on each, and tell each engine its verdict.

        A proof that fails is repeated on other texts; a push whose proof failed twice, or whose weights were not
        loaded, is repeated in full; then the engine is discarded. Engines that died are neither proved nor refused.
        """
        version = self.transport.version
        trials = [Trial(engine) for engine in engines]
        self._repeats = 0
        self._pushes_repeated = 0
        if self._scored_version != version:
            self._before, self._scored_version = self._previous, version
        for attempt in (1, 2):
            doubtful = [t for t in trials if not t.gone and not t.hopeless and (attempt == 1 or t.refused)]
            if not doubtful:
                break
            if attempt == 1:
                results = await self.transport.sent([t.engine for t in doubtful], self._canary(0))
            else:
                sent_again = await self._sent_in_full(doubtful)
                if sent_again is None:
                    break
                results = sent_again
            await self._score(doubtful, 0, results)
            again = [t for t in doubtful if t.refused and t.found is not None and not t.gone and not t.misloaded]
            if again:
                self._repeats += len(again)
                log.warning(
                    "the proof of version %d is repeated on other texts for %s: %s",
                    version, ", ".join(name_of(t.engine) for t in again), again[0].refused,
                )  # fmt: skip
                await self._score(again, 1, await self._sampled([t.engine for t in again], 1))
            # Told at once: what these engines sampled must not wait for another engine's second push.
            now_proved = [t for t in doubtful if not t.gone and not t.refused]
            for t in now_proved:
                log.info("version %d is proved on %s: %s, %.2f of what is accepted", version, name_of(t.engine),
                         t.disagreement, t.excess)  # fmt: skip
            await asyncio.gather(*[self._tell(t.engine, t.engine.proved(version)) for t in now_proved])
        alive = [t for t in trials if not t.gone]
        proved = [t for t in alive if not t.refused]
        self.reference.accepted([t.disagreement.level for t in proved if t.disagreement is not None])
        none = " No engine agrees. " + LIKELY_CAUSES if alive and not proved and not alive[0].hopeless else ""
        verdicts = [
            self._tell(t.engine, t.engine.discard(f"Version {version}: {t.refused}.{none}")) for t in alive if t.refused
        ]
        await asyncio.gather(*verdicts)
        return trials

    async def _sent_in_full(self, doubtful: list[Trial]) -> Results | None:
        """Push to these engines again, in full. Return None, with the engines refused, where that cannot be done.

        Engines that are proved have been told so by then: an error here must not leave `publish` and cost them.

        Raises:
            LearnerDied: There is nothing to push from; the run restarts the learner and proves all engines anew.
        """
        version = self.transport.version
        names = ", ".join(name_of(t.engine) for t in doubtful)
        log.warning("version %d is pushed again in full to %s: %s", version, names, doubtful[0].refused)
        first_refusals = [t.refused for t in doubtful]
        try:
            await self.transport.whole()
            self._pushes_repeated = len(doubtful)
            for t in doubtful:
                t.found, t.disagreement, t.misloaded = None, None, False
            return await self.transport.sent([t.engine for t in doubtful], self._canary(0))
        except LearnerDied:
            raise
        except InfraError as e:
            for t, refused in zip(doubtful, first_refusals, strict=True):
                t.refused = f"{refused}; and the full push failed: {str(e).rstrip('.')}"
                t.hopeless = True
            return None

    async def _sampled(self, engines: list[PushTarget], number: int) -> Results:
        """Let engines compute the texts of a round with the weights that they have."""
        canary = self._canary(number)
        calls = [self._in_time(e.canary(*canary), f"The canary of {name_of(e)}") for e in engines]
        return await asyncio.gather(*calls, return_exceptions=True)

    async def _score(self, trials: list[Trial], number: int, results: Results) -> None:
        """Add a round's results to the trials of the engines that gave them, and judge each anew. One scoring call.

        Raises what is a bug, and Diverged.
        """
        answered: list[tuple[Trial, list[Completion]]] = []
        for trial, result in zip(trials, results, strict=True):
            if isinstance(result, EngineGone):
                trial.gone = True
            elif isinstance(result, InfraError):
                trial.refused = str(result).rstrip(".")
                trial.misloaded = isinstance(result, WeightsMisloaded)
                trial.hopeless = not trial.misloaded
            elif isinstance(result, BaseException):
                raise result
            else:
                answered.append((trial, result))
        texts = self.rounds[number]
        scores = await self._learner_scores(texts, [completions for _, completions in answered])
        previous = self._before if number == 0 else None
        tolerance = self.reference.tolerance
        for (trial, completions), scored in zip(answered, scores, strict=True):
            found = evidence(texts, completions, scored, previous)
            trial.found = found if trial.found is None else trial.found + found
            trial.disagreement = disagreement(trial.found)
            trial.excess = tolerance.excess(trial.disagreement)
            trial.refused = None
            if any((c.versions != self.transport.version).any() for c in completions):
                trial.refused = f"{trial.disagreement}, tokens of another version"
            elif not trial.excess <= 1.0:
                trial.refused = (
                    f"{trial.disagreement}: the weights arrived (digest {str(self.transport.digest)[:12]}) but are not"
                    f" what the engine computes with; accepted is {tolerance} (vllm.canary_tolerance, else"
                    f" {len(self.reference.levels)} pushes before). Raise it only for lower precision"
                )

    async def _learner_scores(self, texts: list[list[int]], answers: list[list[Completion]]) -> list[list[np.ndarray]]:
        """Return the learner's log-probs of each engine's texts and continuations. Equal sequences are scored once."""
        wanted = [
            [(*text, *completion.token_ids.tolist()) for text, completion in zip(texts, completions, strict=True)]
            for completions in answers
        ]
        unique = list(dict.fromkeys(sequence for sequences in wanted for sequence in sequences))
        if not unique:
            return []
        scored = await self.learner.score([list(sequence) for sequence in unique])
        if not all(np.isfinite(row).all() for row in scored):
            raise Diverged(
                "The learner's own log-probs of the canary prompts are not finite with the weights of version"
                f" {self.transport.version}: the weights are broken. actor.learning_rate is too high, or a reward is"
                " not finite; the last checkpoint holds weights from before."
            )
        of = dict(zip(unique, scored, strict=True))
        if texts is self.rounds[0]:
            self._previous = [np.asarray(of[row])[: len(text) - 1] for row, text in zip(wanted[0], texts, strict=True)]
        return [[np.asarray(of[sequence]) for sequence in sequences] for sequences in wanted]

    def _report(self, version: int, seconds: float, trials: list[Trial]) -> PublishReport:
        t = self.transport
        proved = [trial for trial in trials if not trial.gone and not trial.refused]
        found = [trial.disagreement for trial in proved if trial.disagreement is not None]
        return PublishReport(
            version,
            seconds,
            t.digest or "",
            max((d.most for d in found), default=0.0),
            sum(trial.refused is not None and not trial.gone for trial in trials),
            t.seconds,
            t.nbytes,
            t.delta,
            canary_level=max((d.level for d in found), default=0.0),
            canary_excess=max((trial.excess for trial in proved), default=0.0),
            canary_repeats=self._repeats,
            pushes_repeated=self._pushes_repeated,
        )

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
