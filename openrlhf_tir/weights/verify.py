"""Compare an engine's log-probs with the learner's, as a statistic with a known error rate.

The digest proves which bytes arrived, and the read-back (readback.py) what the model holds; neither needs a threshold.
What remains are faults with right weights and wrong results: another rope base or attention scale, a kernel's stale
copy that cannot be read back, a stale cache. To find those, engine and learner score the same texts.

    level     mean of |engine - learner| / (1 - p) over the uncertain tokens: at most FACTOR times the reference
    most      the largest difference of one token, in nats: at most OUTLIER times the ceiling
    decoded   level of the sampled tokens alone (decoding): at most DECODED times the threshold of the level
    behind    distance to the learner's weights over the distance to those of the version before: at most BEHIND

p is the learner's probability of the token. Rounding moves the logits, each by about the same; the log-prob of a token
moves by 1 - p times as much as its logit. Division by 1 - p therefore gives every token the same noise, however certain
the policy is or becomes. Tokens with p above 95 % do not count: rounding of the log-prob itself is all that is left of
them. (When the median of the plain differences decided, texts full of certain tokens made right pushes fail.) The
reference is the median level of the last accepted pushes, at first of the calibration; its threshold is between
SMALLEST and the ceiling (publisher.CEILING). In fp32 (config/sections/rollout.py, FP32_TOLERANCE) and with
vllm.canary_tolerance there is neither calibration nor reference: the threshold of the level is fixed. docs/weights.md
has the derivation of the thresholds and the measured distributions. numpy only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from ..types import Completion

FACTOR = 2.0
"""Largest level of a push relative to the reference: six standard deviations of right pushes' log-ratio, 0.9 divided by
the square root of the number of tokens, at the least number of tokens that a proof may rest on (MIN_TOKENS)."""
BEHIND = 2.5
"""Largest `behind`: six standard deviations of its logarithm, 1.25 divided by the square root of the number of tokens,
at MIN_TOKENS. The logarithm is 0 on average if an update is smaller than the numerics, and negative otherwise."""
DECODED = 1.5
"""Largest level of the sampled tokens alone, relative to the threshold of the level: that is 3 times the reference, six
standard deviations, 1.1 divided by the square root of their number, at MIN_DECODED."""
MIN_DECODED = 32
"""Least number of sampled tokens that count, as MIN_TOKENS. With fewer sampled tokens they are not judged alone."""
LEAST_DOUBT = 0.05
"""Tokens count if the learner leaves at least this probability to others. It is also the least divisor."""
MIN_TOKENS = 64
"""Least number of tokens that count. If fewer are uncertain, the least certain ones are taken."""
SMALLEST = 1e-5
"""Least threshold. With equal arithmetic on both sides the level is zero, and so would be the threshold."""
OUTLIER = 10.0
"""Largest difference of a single token relative to the ceiling. Rounding never reaches it."""
REMEMBERED = 16
"""Number of accepted pushes from which the reference is computed."""


class Evidence(NamedTuple):
    """Log-probs of the same T tokens by the engine, the learner, and the learner's version before. All arrays [T].

    `previous_T` is NaN where the version before did not score the token. `sampled_T` is True where the engine sampled
    the token, rather than to score a token of the text.
    """

    engine_T: np.ndarray
    learner_T: np.ndarray
    previous_T: np.ndarray
    sampled_T: np.ndarray


def pooled(parts: Iterable[Evidence]) -> Evidence:
    """Return the evidence of several texts or rounds together."""
    return Evidence(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


class Disagreement(NamedTuple):
    """How far an engine is from the learner; see the module's docstring. All are inf if a log-prob is not finite.

    Attributes:
        level: Mean difference over the tokens that count, in nats of the token's logit.
        most: Largest difference of any token, in nats.
        behind: Distance to the learner over the distance to its version before.
        tokens: Number of tokens that count.
        decoded: Mean difference over the sampled tokens that count; 0 if there are too few.
    """

    level: float
    most: float
    behind: float = 0.0
    tokens: int = 0
    decoded: float = 0.0

    def __str__(self) -> str:
        if not np.isfinite(self.most):
            return "log-probs that are not finite"
        text = f"a level of {self.level:.3g} over {self.tokens} uncertain tokens (one of them {self.most:.3g} nats"
        if self.decoded > self.level:
            text += f"; {self.decoded:.3g} over the sampled ones"
        if self.behind > 1:
            text += f"; {self.behind:.2g} times as far as from the version before"
        return f"{text})"


class Tolerance(NamedTuple):
    """The largest accepted values of a Disagreement that the run itself decides; BEHIND and DECODED are fixed."""

    level: float
    most: float

    def excess(self, disagreement: Disagreement) -> float:
        """Return the largest ratio of a part of the disagreement to its tolerance; above 1 the push is refused."""
        return max(
            disagreement.level / self.level,
            disagreement.most / self.most,
            disagreement.behind / BEHIND,
            disagreement.decoded / (DECODED * self.level),
        )

    def __str__(self) -> str:
        return f"a level of {self.level:.2g} and {self.most:.2g} nats for one token"


@dataclass
class Reference:
    """How much right pushes of this run differ, and the tolerance that follows from it.

    Attributes:
        ceiling: Largest threshold, in nats.
        fixed: The threshold of the whole run (`Config.fixed_canary_tolerance`); None: FACTOR times the reference.
        levels: Levels of the last accepted pushes.
    """

    ceiling: float
    fixed: float | None = None
    levels: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    @property
    def tolerance(self) -> Tolerance:
        """The tolerance for the next push. Before the first accepted push it is the ceiling."""
        if self.fixed is not None:
            level = self.fixed
        elif self.levels:
            level = min(self.ceiling, max(SMALLEST, FACTOR * float(np.median(self.levels))))
        else:
            level = self.ceiling
        return Tolerance(level, OUTLIER * self.ceiling)

    def accepted(self, levels: Sequence[float]) -> None:
        """Add an accepted push, given the levels of its engines. A push counts once, whatever the number of engines."""
        if len(levels):
            self.levels.append(float(np.median(levels)))


def evidence(
    texts: Sequence[Sequence[int]],
    completions: Sequence[Completion],
    scores: Sequence[np.ndarray],
    previous: Sequence[np.ndarray] | None = None,
) -> Evidence:
    """Align the engine's and the learner's log-probs of the same tokens.

    Args:
        texts: Texts that the engine continued. It also scored their own tokens if a completion has `prompt_logprobs`.
        completions: The engine's completion of each text.
        scores: The learner's log-probs of each text and its continuation, of every token but the first: [P + T - 1].
        previous: The log-probs of the texts alone by the learner's version before, [P - 1] each; None: unknown.

    Raises:
        ValueError: There is nothing to compare, or the lengths disagree. That is a bug, not a bad push.
    """
    parts: list[Evidence] = []
    shared = shared_prefixes(texts)
    for i, (text, completion) in enumerate(zip(texts, completions, strict=True)):
        of_text = completion.prompt_logprobs
        text_tokens = len(text) - 1
        answer = completion.logprobs if of_text is None else np.concatenate([of_text, completion.logprobs])
        score = np.asarray(scores[i], np.float64)[text_tokens if of_text is None else 0 :]
        if len(answer) != len(score):
            raise ValueError(f"{len(answer)} log-probs of a canary cannot be compared with {len(score)} of the learner")
        old = np.full(len(answer), np.nan)
        skipped = 0
        if of_text is not None:
            skipped = max(0, shared[i] - 1)  # tokens that are shared with an earlier text count there
            if previous is not None:
                old[:text_tokens] = previous[i]
        sampled = np.arange(len(answer)) >= (0 if of_text is None else text_tokens)
        of_whole_text = Evidence(np.asarray(answer, np.float64), score, old, sampled)
        parts.append(Evidence(*(array[skipped:] for array in of_whole_text)))
    if not any(len(part.engine_T) for part in parts):
        raise ValueError("0 log-probs of a canary cannot be compared")
    return pooled(parts)


def shared_prefixes(texts: Sequence[Sequence[int]]) -> list[int]:
    """Return for each text how many tokens it shares with an earlier one from the start."""

    def shared(text: Sequence[int], other: Sequence[int]) -> int:
        equal = takewhile(lambda pair: pair[0] == pair[1], zip(text, other, strict=False))
        return sum(1 for _ in equal)

    return [max((shared(text, other) for other in texts[:i]), default=0) for i, text in enumerate(texts)]


def disagreement(evidence: Evidence) -> Disagreement:
    """Return how far the engine is from the learner."""
    difference_T = np.abs(evidence.engine_T - evidence.learner_T)
    if not np.isfinite(difference_T).all():
        return Disagreement(np.inf, np.inf, np.inf, len(difference_T), np.inf)
    doubt_T = -np.expm1(evidence.learner_T)  # 1 - p
    everywhere = np.ones(len(difference_T), bool)
    counted = _uncertain(doubt_T, everywhere, MIN_TOKENS)
    weight_T = 1.0 / np.maximum(doubt_T, LEAST_DOUBT)
    decoded = 0.0
    if evidence.sampled_T.sum() >= MIN_DECODED:
        sampled = _uncertain(doubt_T, evidence.sampled_T, MIN_DECODED)
        decoded = float((difference_T * weight_T)[sampled].mean())
    return Disagreement(
        float((difference_T * weight_T)[counted].mean()),
        float(difference_T.max()),
        _behind(evidence, counted, weight_T),
        int(counted.sum()),
        decoded,
    )


def _uncertain(doubt_T: np.ndarray, among_T: np.ndarray, least: int) -> np.ndarray:
    """Return where the learner is uncertain, among some tokens; the `least` most uncertain ones if it is of fewer."""
    counted = among_T & (doubt_T > LEAST_DOUBT)
    if counted.sum() < least:
        counted = np.zeros(len(doubt_T), bool)
        counted[np.argsort(np.where(among_T, -doubt_T, np.inf), kind="stable")[: min(least, among_T.sum())]] = True
    return counted


def _behind(evidence: Evidence, counted: np.ndarray, weight_T: np.ndarray) -> float:
    """Return the distance to the learner over the distance to its version before; 0 if the two versions are equal."""
    known = counted & np.isfinite(evidence.previous_T)

    def distance(a_T: np.ndarray, b_T: np.ndarray) -> float:
        return float((np.abs(a_T - b_T)[known] * weight_T[known]).sum())

    to_new = distance(evidence.engine_T, evidence.learner_T)
    to_old = distance(evidence.engine_T, evidence.previous_T)
    if not distance(evidence.learner_T, evidence.previous_T) or not to_new:
        return 0.0
    return to_new / to_old if to_old else np.inf
