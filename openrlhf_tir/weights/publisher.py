"""Push the learner's weights to every engine, and prove them on each before anyone trains on what it samples.

    learner.publish(file) -> digest
        all engines at once: update_weights(file, version, digest, canary)
            the digest of what arrived                must equal that of what was sent
            the read-back of what the model holds     must equal what was sent, tensor by tensor, on every worker
            -> log-probs of the canary's texts        show what the engine computes
    learner.score(texts) -> how far the engine is from the learner (verify.py)
        accepted: confirm_weights(version)            releases what it sampled since the push
        refused:  repeat on other texts, pooled with the first ones
                  if refused again: repeat all of this with a full push
                  if refused again: engine.discard(reason); what it sampled is lost, and its owner starts another one

So a correct push fails only if it fails on two sets of texts, in two pushes. The transport decides how the weights get
there: by file (file_transport.py), by a broadcast to all engines at once (broadcast/transport.py), or through device
memory that learner and engine share (ipc/transport.py). This module sees Protocols only: engines are Ray handles in a
run and plain objects in tests.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

import numpy as np

from ..errors import (
    ConfigError,
    Diverged,
    EngineGone,
    InfraError,
    LearnerDied,
    WeightsMisloaded,
    WeightsUnverified,
)
from ..ports import Learner, RemoteEngine, RolloutEngine
from ..pushes import CANARY_TEXTS, Canary, PublishReport
from ..types import Completion
from ..waiting.deadlines import Deadline
from .file_transport import FileTransport
from .transport import Results, Transport, same_weights
from .verify import OUTLIER, Disagreement, Evidence, Reference, disagreement, evidence, pooled

log = logging.getLogger(__name__)
CEILING = 0.5
"""Largest threshold that a run finds by itself, in nats: more cannot be numerics."""
PUSH = Deadline(600.0, "timeouts.push_s")
TEXT_TOKENS = 96
"""Only this many tokens at the end of a prompt are scored, so that long prompts do not make a proof expensive."""
SECOND_SEED = 1_000_003
"""Added to the seed in the second round. If its texts are those of the first round, the sampled tokens still differ."""
LIKELY_CAUSES = (
    "Likely causes: engine and learner loaded different models or tokenizers; a quantised engine (vllm.dtype, the"
    " model's quantization_config); other rope settings or a sliding window on one side; a tied lm_head that kept its"
    " old copy; fp16 that overflows (use ds.param_dtype = 'bf16')."
)


class Outcome(Enum):
    """What an engine's proof of a push came to, and what follows from it.

                  other texts   a full push   at the end
    PROVED        -             -             what it sampled is released at once
    DISAGREES     yes           yes           the engine is discarded
    MISLOADED     -             yes           the engine is discarded
    FAILED        -             -             the engine is discarded
    GONE          -             -             nothing: its replacement is proved separately
    """

    PROVED = auto()
    DISAGREES = auto()
    """It computes other log-probs than the learner."""
    MISLOADED = auto()
    """By the read-back its model holds other weights than were sent."""
    FAILED = auto()
    """It could not take the push, or answer."""
    GONE = auto()
    """It died, or did not answer in time."""


REPEATED_IN_FULL = {Outcome.DISAGREES, Outcome.MISLOADED}


@dataclass
class Trial:
    """One engine's proof of one push, over all its rounds.

    Attributes:
        engine: The engine.
        evidence: The evidence of all rounds since the last push to the engine, pooled.
        disagreement: The statistic of the evidence; None before the first answer.
        excess: The disagreement relative to the tolerance: above 1 it is refused.
        outcome: The outcome of the last round.
        why: The reason why the engine is not proved; empty if it is.
    """

    engine: RemoteEngine
    evidence: Evidence | None = None
    disagreement: Disagreement | None = None
    excess: float = np.inf
    outcome: Outcome = Outcome.FAILED
    why: str = ""

    @property
    def refused(self) -> bool:
        """True if the engine lives and is not proved."""
        return self.outcome not in (Outcome.PROVED, Outcome.GONE)

    def end(self, outcome: Outcome, why: object = "") -> None:
        """Set the outcome of a round and its reason, without the full stop of an error's text."""
        self.outcome = outcome
        self.why = str(why).rstrip(".")


class WeightPublisher:
    """Publishes and proves the weights of a run. One lock covers a push, a join and a learner's step.

    `engines` is read at every push: the owner adds engines that `join` proved, and removes dead ones.
    """

    def __init__(
        self,
        learner: Learner,
        engines: Sequence[RemoteEngine],
        directory: Path,
        canary_prompts: list[list[int]],
        *,
        tolerance: Reference | float | None,
        canary_tokens: int = 8,
        seed: int = 0,
        deadline: Deadline = PUSH,
        transport: Transport | None = None,
    ) -> None:
        """Create a publisher; nothing is pushed yet.

        Args:
            learner: The learner, which has the weights.
            engines: The live engines. The owner adds those that `join` proved and removes the dead.
            directory: Where files for the engines go, if `transport` is not given.
            canary_prompts: Tokenised prompts; the first CANARY_TEXTS are scored at every push, the next ones in a
                second round.
            tolerance: Threshold of the mean difference in nats, or the reference of an earlier publisher of the same
                run. None: call `calibrate` before the first push.
            canary_tokens: Tokens that an engine samples after each text.
            seed: Seed of these tokens.
            deadline: Deadline of an engine's part of a push.
            transport: How weights get to engines; full files if not given.

        Raises:
            ConfigError: `canary_prompts` is empty.
        """
        if not canary_prompts:
            raise ConfigError(
                "canary_prompts is empty: nothing would prove a weight push. Give at least one tokenised prompt."
            )
        self.learner = learner
        self.engines = engines
        self.transport = transport or FileTransport(learner, directory, delta=False, deadline=deadline)
        texts = [prompt[-TEXT_TOKENS:] for prompt in canary_prompts]
        self.rounds = [texts[:CANARY_TEXTS], texts[CANARY_TEXTS : 2 * CANARY_TEXTS] or texts[:CANARY_TEXTS]]
        """The texts of the first and of the second round of a proof."""
        self.canary_tokens = canary_tokens
        self.seed = seed
        self.reference = tolerance if isinstance(tolerance, Reference) else Reference(CEILING, fixed=tolerance)
        self.deadline = deadline
        self._previous: list[np.ndarray] | None = None
        """The learner's log-probs of the first round's texts by the version of the last push."""
        self._before: list[np.ndarray] | None = None
        """The same by the version before it. `Disagreement.behind` compares with it."""
        self._scored_version: int | None = None
        self._parts: dict[str, float] = {}
        """Seconds of the last push's parts by the name of their metric; the longest of all engines."""
        self._repeats = 0
        """Number of engines that needed a second round in the last push."""
        self._pushes_repeated = 0
        """Number of engines to which the last push was repeated."""
        self._pushed_digest: str | None = None
        """Digest of the last weights that were pushed to all members. A new engine may have got later ones."""
        self._written_for_join: int | None = None
        """Version that was written for a new engine and that the other engines still need; None: there is none."""
        self._tuned_since_push = False
        """True if the learner was fine-tuned since the last push. It can no longer score that push's weights, although
        the version is the same."""
        self._learner_lock = asyncio.Lock()

    async def calibrate(self) -> Reference:
        """Set the reference from engines that loaded the same weights from disk as the learner.

        The differences are then due to numerics only. Call it before the first push if no tolerance was given. An
        engine that differs by more than the ceiling is discarded.

        Raises:
            ConfigError: All engines differ by more than the ceiling: the two sides do not have the same model.
            WeightsUnverified: No engine answered.
            LearnerDied: A rank of the learner died while it scored.
            Diverged: The learner's own log-probs are not finite.
        """
        async with self._learner_lock:
            engines = list(self.engines)
            # The texts of both rounds are used: the reference should rest on more texts than the verdict on a push.
            trials = [Trial(engine) for engine in engines]
            for number in range(len(self.rounds)):
                await self._score(trials, number, await self._sampled([t.engine for t in trials], number))
            answered = [(t, t.disagreement) for t in trials if t.disagreement is not None]
            for t, difference in answered:
                # There is no reference to compare with yet, only the ceiling.
                if max(difference.level, difference.most / OUTLIER) <= CEILING:
                    t.end(Outcome.PROVED)
                else:
                    t.end(Outcome.DISAGREES, f"{t.engine.name} and the learner differ by {difference}")
            refused = [t for t, _ in answered if t.refused]
            if answered and len(refused) == len(answered):
                raise ConfigError(
                    f"{refused[0].why} on the weights that both loaded from disk. More than {CEILING:g} nats cannot"
                    f" be numerics. {LIKELY_CAUSES} If the two are the same model all the same, set"
                    f" vllm.canary_tolerance, unless it is one token that differs by more than {OUTLIER * CEILING:g}."
                )
            for t in trials:
                if t.refused:
                    await t.engine.discard(f"Before the first push: {t.why}. {LIKELY_CAUSES}")
            if not answered:
                reasons = "; ".join(t.why for t in trials if t.refused) or "all died"
                raise WeightsUnverified(
                    f"0 of {len(trials)} engines answered the canary ({reasons}). See the actors' logs."
                )
            self.reference.accepted([difference.level for t, difference in answered if not t.refused])
            return self.reference

    async def publish(self, version: int, *, must_differ: bool = False) -> PublishReport:
        """Push the learner's current weights to all engines, and prove them.

        What an engine samples with them is withheld until they are proved there. An engine on which they cannot be
        proved is discarded, and counted in the report.

        Args:
            version: Number of learner updates behind the weights.
            must_differ: True if the weights must not equal those of the last push. (They may be equal otherwise: with
                a learning rate of 0 a step changes nothing.)

        Raises:
            WeightsUnverified: The weights equal those of the last push, although `must_differ` is set, or a full file
                has another digest than the delta for which it stands.
            LearnerDied: A rank of the learner died while it wrote or scored.
            Diverged: The learner's own log-probs of the texts of the proof are not finite.
            InfraError: The weights could not be written or sent, for example on a full disk.
        """
        start = time.monotonic()
        async with self._learner_lock:
            transport = self.transport
            transport.begin()
            differs_from = self._pushed_digest if must_differ else None
            # The weights are written at every call, also for the same version: fine-tuning changes them without a new
            # one. The exception is a version that was just written for a new engine.
            if version != self._written_for_join:
                await transport.take(version, differs_from)
                self._tuned_since_push = False
            elif transport.digest is not None and transport.digest == differs_from:
                raise WeightsUnverified(same_weights(version, transport.digest))
            self._written_for_join = None
            trials = await self._prove(list(self.engines))
            self._pushed_digest = transport.digest or self._pushed_digest
            return self._report(version, time.monotonic() - start, trials)

    @asynccontextmanager
    async def exclusive_learner(self) -> AsyncIterator[None]:
        """Hold the lock while the learner accumulates, steps or loads: it can neither publish nor score meanwhile.

        Never hold it during a drain. A drain waits for groups, a group may wait for an engine, and that engine needs
        this lock to join.
        """
        async with self._learner_lock:
            yield

    @asynccontextmanager
    async def fine_tuning(self) -> AsyncIterator[None]:
        """Hold the lock like `exclusive_learner`, for a step that changes the weights but not the version."""
        async with self._learner_lock:
            self._tuned_since_push = True
            self._written_for_join = None
            yield

    async def join(self, engine: RemoteEngine, admit: Callable[[], None] = lambda: None) -> None:
        """Bring one new engine to the learner's weights, prove it, and call `admit`, which may make it a member.

        The lock is held until `admit` has returned, so that no push begins between the proof and the membership:
        otherwise the engine could be admitted with a proof of the push before.

        Between a step and the next push (during a drain, with pipeline.push_every > 1, in fine-tuning) the learner
        cannot score the last push any more. The engine then gets the learner's current weights, which are newer than
        the other engines'; those get them later as the same version. The same happens if nothing was pushed yet: at the
        start, and after a restart of the learner, when it is unknown which version the engine has.

        Raises:
            WeightsUnverified: The engine does not hold the weights.
            EngineGone: The engine died, or did not answer in time.
            LearnerDied: A rank of the learner died while it wrote or scored.
            Diverged: As in `publish`.
            InfraError: The weights could not be written or sent.
        """
        async with self._learner_lock:
            if not self.transport.begun or self.learner.version > self.transport.version or self._tuned_since_push:
                await self.transport.take(self.learner.version, None, full=True)
                self._tuned_since_push = False
                self._written_for_join = self.learner.version
            await self.transport.require_full_push()
            [trial] = await self._prove([engine])
            if trial.outcome is Outcome.GONE:
                raise EngineGone(f"{engine.name} was lost while version {self.transport.version} was pushed to it.")
            if trial.refused:
                raise WeightsUnverified(f"Version {self.transport.version} is not proved on a new engine: {trial.why}.")
            admit()

    async def close(self) -> None:
        """Remove the files of the last push."""
        self.transport.remove()

    def _canary(self, number: int) -> Canary:
        """Return what an engine computes in round `number` (0 or 1) of a proof."""
        return Canary(
            self.rounds[number], self.canary_tokens, self.seed + self.transport.version + number * SECOND_SEED
        )

    async def _prove(self, engines: list[RemoteEngine]) -> list[Trial]:
        """Send the last push to engines, prove it on each, and send each engine its verdict: see `Outcome`.

        Returns:
            A trial for each engine.

        Raises:
            InfraError, Diverged: As in `publish`. What an engine raises is in its trial.
        """
        version = self.transport.version
        trials = [Trial(engine) for engine in engines]
        self._parts = {}
        self._repeats = 0
        self._pushes_repeated = 0
        if not trials:
            return trials
        if self._scored_version != version:
            self._before = self._previous
            self._scored_version = version
        await self._prove_once(trials, await self.transport.send(engines, self._canary(0)))
        doubtful = [t for t in trials if t.outcome in REPEATED_IN_FULL]
        if doubtful:
            results = await self._push_in_full(doubtful)
            if results is not None:
                await self._prove_once(doubtful, results)
        alive = [t for t in trials if t.outcome is not Outcome.GONE]
        proved = [t for t in alive if not t.refused]
        self.reference.accepted([t.disagreement.level for t in proved if t.disagreement is not None])
        none_agrees = bool(alive) and not proved and alive[0].outcome is not Outcome.FAILED
        hint = f" No engine agrees. {LIKELY_CAUSES}" if none_agrees else ""
        for t in alive:
            if t.refused:
                await t.engine.discard(f"Version {version}: {t.why}.{hint}")
        return trials

    async def _prove_once(self, trials: list[Trial], results: Results) -> None:
        """Judge one push by what its engines answered, on other texts too where they disagree, and confirm the proved.

        Verdicts are sent now, so that what a proved engine sampled does not wait for another engine's second push.
        """
        version = self.transport.version
        start = time.monotonic()
        await self._score(trials, 0, results)
        self._note_part("push_score_s", time.monotonic() - start)
        disagreeing = [t for t in trials if t.outcome is Outcome.DISAGREES]
        if disagreeing:
            self._repeats += len(disagreeing)
            log.warning(
                "the proof of version %d is repeated on other texts for %s: %s",
                version, ", ".join(t.engine.name for t in disagreeing), disagreeing[0].why,
            )  # fmt: skip
            await self._score(disagreeing, 1, await self._sampled([t.engine for t in disagreeing], 1))
        proved = [t for t in trials if t.outcome is Outcome.PROVED]
        for t in proved:
            log.info("version %d is proved on %s: %s, %.2f of what is accepted", version, t.engine.name,
                     t.disagreement, t.excess)  # fmt: skip
        await asyncio.gather(*[self._confirm(t, version) for t in proved])

    async def _push_in_full(self, doubtful: list[Trial]) -> Results | None:
        """Push to these engines again, in full. Return None, with the engines refused, if that fails.

        The verdicts of the proved engines were sent before. So an error here must not be raised, or `publish` would
        lose them as well.

        Raises:
            LearnerDied: There is nothing to push from. The run restarts the learner and proves all engines again.
        """
        version = self.transport.version
        names = ", ".join(t.engine.name for t in doubtful)
        log.warning("version %d is pushed again in full to %s: %s", version, names, doubtful[0].why)
        try:
            await self.transport.require_full_push()
            self._pushes_repeated = len(doubtful)
            for t in doubtful:
                t.evidence = None
                t.disagreement = None
            return await self.transport.send([t.engine for t in doubtful], self._canary(0))
        except LearnerDied:
            raise
        except InfraError as error:
            for t in doubtful:
                t.end(Outcome.FAILED, f"{t.why}; and the full push failed: {error}")
            return None

    async def _sampled(self, engines: list[RemoteEngine], number: int) -> Results:
        """Let engines compute the texts of a round with their current weights, and return their answers or errors."""
        canary = self._canary(number)
        calls = [engine.call(RolloutEngine.sample_canary, *canary, deadline=self.deadline) for engine in engines]
        return await asyncio.gather(*calls, return_exceptions=True)

    async def _score(self, trials: list[Trial], number: int, results: Results) -> None:
        """Add a round's results to the trials, and decide each again. The learner scores all of them in one call.

        Args:
            trials: The trials.
            number: The round, 0 or 1.
            results: What each trial's engine returned or raised.

        Raises:
            Diverged: The learner's own log-probs are not finite.
            Exception: An engine raised something that is not an InfraError: a bug.
        """
        answered: list[tuple[Trial, list[Completion]]] = []
        for trial, result in zip(trials, results, strict=True):
            if isinstance(result, EngineGone):
                trial.end(Outcome.GONE)
            elif isinstance(result, WeightsMisloaded):
                trial.end(Outcome.MISLOADED, result)
            elif isinstance(result, InfraError):
                trial.end(Outcome.FAILED, result)
            elif isinstance(result, BaseException):
                raise result
            else:
                answered.append((trial, result))
        texts = self.rounds[number]
        scores = await self._learner_scores(texts, [completions for _, completions in answered])
        previous = self._before if number == 0 else None
        tolerance = self.reference.tolerance
        for (trial, completions), scored in zip(answered, scores, strict=True):
            of_round = evidence(texts, completions, scored, previous)
            trial.evidence = of_round if trial.evidence is None else pooled([trial.evidence, of_round])
            trial.disagreement = disagreement(trial.evidence)
            trial.excess = tolerance.excess(trial.disagreement)
            if any((c.versions != self.transport.version).any() for c in completions):
                trial.end(Outcome.DISAGREES, f"{trial.disagreement}, tokens of another version")
            elif trial.excess <= 1.0:
                trial.end(Outcome.PROVED)
            else:
                trial.end(
                    Outcome.DISAGREES,
                    f"{trial.disagreement}: the weights arrived (digest {str(self.transport.digest)[:12]}), but the"
                    f" engine does not compute with them. The tolerance is {tolerance} (vllm.canary_tolerance, or from"
                    f" the last {len(self.reference.levels)} pushes). Raise it only for lower precision",
                )

    async def _learner_scores(self, texts: list[list[int]], answers: list[list[Completion]]) -> list[list[np.ndarray]]:
        """Return the learner's log-probs of each engine's texts and continuations. Equal sequences are scored once.

        Raises:
            Diverged: They are not finite.
            LearnerDied: A rank died.
        """
        sequences_of = [
            [(*text, *completion.token_ids.tolist()) for text, completion in zip(texts, completions, strict=True)]
            for completions in answers
        ]
        unique = list(dict.fromkeys(sequence for sequences in sequences_of for sequence in sequences))
        if not unique:
            return []
        scores = await self.learner.score([list(sequence) for sequence in unique])
        if not all(np.isfinite(row).all() for row in scores):
            raise Diverged(
                "The learner's own log-probs of the canary prompts are not finite with the weights of version"
                f" {self.transport.version}: the weights are broken. actor.learning_rate is too high, or a reward is"
                " not finite; the last checkpoint holds weights from before."
            )
        score_of = dict(zip(unique, scores, strict=True))
        if texts is self.rounds[0]:
            self._previous = [
                np.asarray(score_of[sequence])[: len(text) - 1]
                for sequence, text in zip(sequences_of[0], texts, strict=True)
            ]
        return [[np.asarray(score_of[sequence]) for sequence in sequences] for sequences in sequences_of]

    def _report(self, version: int, seconds: float, trials: list[Trial]) -> PublishReport:
        transport = self.transport
        proved = [trial for trial in trials if trial.outcome is Outcome.PROVED]
        disagreements = [trial.disagreement for trial in proved if trial.disagreement is not None]
        return PublishReport(
            version,
            seconds,
            transport.digest or "",
            max((d.most for d in disagreements), default=0.0),
            sum(trial.refused for trial in trials),
            transport.seconds,
            transport.nbytes,
            transport.delta,
            canary_level=max((d.level for d in disagreements), default=0.0),
            canary_excess=max((trial.excess for trial in proved), default=0.0),
            canary_repeats=self._repeats,
            pushes_repeated=self._pushes_repeated,
            parts={**self._parts, **transport.parts},
        )

    def _note_part(self, name: str, seconds: float) -> None:
        """Note the duration of a part of the push; of several engines the longest counts."""
        self._parts[name] = max(seconds, self._parts.get(name, 0.0))

    async def _confirm(self, trial: Trial, version: int) -> None:
        """Release what the engine sampled with `version`, and note that it was proved.

        An engine that does not take the verdict is given up by `call`: its completions would wait for it for ever.
        """
        try:
            parts = await trial.engine.call(RolloutEngine.confirm_weights, version, deadline=self.deadline)
        except EngineGone:
            trial.outcome = Outcome.GONE
            return
        trial.engine.version = version
        for name, seconds in parts.items():
            self._note_part(name, seconds)
