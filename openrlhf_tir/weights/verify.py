"""The proof of what an engine computes: its log-probs against the learner's, as a statistic with a known error rate.

Which bytes arrived is proved by the digest, and what the model holds by the read-back (readback.py); neither needs a
threshold. What is left are faults that leave the weights right and the results wrong: another rope base or attention
scale, a kernel's stale copy that cannot be read back, a stale cache. For these, engine and learner score the same
texts.

    level     mean |engine - learner| over the uncertain tokens, in nats: at most FACTOR times the reference
    most      the largest difference of one token: at most OUTLIER times the ceiling
    behind    distance to the learner's weights over the distance to those of the version before: at most BEHIND

Tokens count once and only where the learner is uncertain: a certain token differs by nothing in right and wrong weights
alike, and a text full of them made right pushes fall when the median over all tokens decided. The reference is the
median level of the last accepted pushes, so that it follows the policy. docs/weights.md has the derivation and the
measured distributions. numpy only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..types import Completion

FACTOR = 2.5
"""Times the reference that a push may have as its level. Right pushes of one policy stay within 1.2 times."""
BEHIND = 2.0
"""Right weights are never farther from the learner than from the version before; both distances are numerics where an
update is smaller than these, and their ratio then stays within 1.2 of 1."""
CERTAIN = float(np.log(0.95))
"""Tokens of a higher log-prob do not count: rounding cannot show on them."""
MIN_TOKENS = 64
"""Tokens that count at least: the least certain ones where fewer are uncertain."""
SMALLEST = 1e-5
"""Nats; a threshold is never below it, as equal arithmetic on both sides has a level of zero."""
OUTLIER = 10.0
"""Times the ceiling: what no rounding does to a single token."""
REMEMBERED = 16
"""Accepted pushes whose levels make the reference."""


@dataclass(frozen=True)
class Evidence:
    """Log-probs of the same tokens by the engine and by the learner. All arrays [T]; NaN in `previous_T` where the
    learner's version before did not score the token."""

    engine_T: np.ndarray
    learner_T: np.ndarray
    previous_T: np.ndarray

    def __add__(self, other: Evidence) -> Evidence:
        """Pool two rounds of a proof."""
        return Evidence(
            np.concatenate([self.engine_T, other.engine_T]),
            np.concatenate([self.learner_T, other.learner_T]),
            np.concatenate([self.previous_T, other.previous_T]),
        )


class Disagreement(NamedTuple):
    """How far an engine is from the learner; see the module's docstring. All are inf when a log-prob is not finite."""

    level: float
    most: float
    behind: float = 0.0
    tokens: int = 0

    def __str__(self) -> str:
        if not np.isfinite(self.most):
            return "log-probs that are not finite"
        text = f"{self.level:.3g} nats on average over {self.tokens} uncertain tokens (at most {self.most:.3g}"
        if self.behind > 1:
            text += f"; {self.behind:.2g} times as far as from the version before"
        return f"{text})"


class Tolerance(NamedTuple):
    """The largest Disagreement that is accepted, part by part."""

    level: float
    most: float
    behind: float = BEHIND

    def excess(self, found: Disagreement) -> float:
        """Return the disagreement in units of what is accepted: above 1 it is refused."""
        return max(found.level / self.level, found.most / self.most, found.behind / self.behind)

    def accepts(self, found: Disagreement) -> bool:
        return self.excess(found) <= 1.0

    def __str__(self) -> str:
        return f"{self.level:.2g} nats on average, {self.most:.2g} at most"


@dataclass
class Reference:
    """What right pushes of this run differ by, and the tolerance that follows from it.

    Attributes:
        ceiling: Largest threshold, in nats (`vllm.canary_ceiling`).
        fixed: Threshold that a setting gave (`vllm.canary_tolerance`); None: FACTOR times the reference.
        levels: Levels of the last accepted pushes.
    """

    ceiling: float
    fixed: float | None = None
    levels: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    @property
    def tolerance(self) -> Tolerance:
        """What the next push may differ by. Before anything was accepted only the ceiling holds."""
        if self.fixed is not None:
            level = self.fixed
        elif self.levels:
            level = min(self.ceiling, max(SMALLEST, FACTOR * float(np.median(self.levels))))
        else:
            level = self.ceiling
        return Tolerance(level, OUTLIER * self.ceiling)

    def accepted(self, levels: Sequence[float]) -> None:
        """Note the levels of the engines that a push was proved on; a push counts once, however many they are."""
        if len(levels):
            self.levels.append(float(np.median(levels)))


def evidence(
    texts: Sequence[Sequence[int]],
    completions: Sequence[Completion],
    scores: Sequence[np.ndarray],
    previous: Sequence[np.ndarray] | None = None,
) -> Evidence:
    """Align what the engine and the learner say about the same tokens.

    Args:
        texts: Texts that the engine continued; it also scored their own tokens if a completion has `prompt_logprobs`.
        completions: What the engine said of text i, aligned with `texts`.
        scores: The learner's log-probs of text i and its continuation, of every token but the first: [P + T - 1].
        previous: The same of the texts alone by the learner's version before: [P - 1] each.

    Raises:
        ValueError: There is nothing to compare, or the lengths disagree. That is a bug, not a bad push.
    """
    engine, learner, before = [], [], []
    shared = shared_prefixes(texts)
    for i, (text, completion) in enumerate(zip(texts, completions, strict=True)):
        own = completion.prompt_logprobs
        known = len(text) - 1
        said = completion.logprobs if own is None else np.concatenate([own, completion.logprobs])
        score = np.asarray(scores[i], np.float64)[known if own is None else 0 :]
        if len(said) != len(score):
            raise ValueError(f"{len(said)} log-probs of a canary cannot be compared with {len(score)} of the learner")
        old = np.full(len(said), np.nan)
        skipped = 0
        if own is not None:
            skipped = max(0, shared[i] - 1)  # an earlier text has proved these tokens
            if previous is not None:
                old[:known] = previous[i]
        engine.append(np.asarray(said, np.float64)[skipped:])
        learner.append(score[skipped:])
        before.append(old[skipped:])
    if not sum(len(part) for part in engine):
        raise ValueError("a canary without tokens cannot be compared")
    return Evidence(np.concatenate(engine), np.concatenate(learner), np.concatenate(before))


def shared_prefixes(texts: Sequence[Sequence[int]]) -> list[int]:
    """Return for each text how many tokens it shares with an earlier one from the start."""
    shared = []
    for i, text in enumerate(texts):
        longest = 0
        for other in texts[:i]:
            length = 0
            for a, b in zip(text, other, strict=False):
                if a != b:
                    break
                length += 1
            longest = max(longest, length)
        shared.append(longest)
    return shared


def disagreement(found: Evidence) -> Disagreement:
    """Return how far the engine is from the learner."""
    difference_T = np.abs(found.engine_T - found.learner_T)
    if not np.isfinite(difference_T).all():
        return Disagreement(np.inf, np.inf, np.inf, len(difference_T))
    counted = found.learner_T < CERTAIN
    if counted.sum() < MIN_TOKENS:
        counted = np.zeros(len(difference_T), bool)
        counted[np.argsort(found.learner_T, kind="stable")[:MIN_TOKENS]] = True
    return Disagreement(
        float(difference_T[counted].mean()),
        float(difference_T.max()),
        _behind(found, counted),
        int(counted.sum()),
    )


def _behind(found: Evidence, counted: np.ndarray) -> float:
    """Return the distance to the learner over the distance to its version before; 0 where both are one."""
    known = counted & np.isfinite(found.previous_T)
    to_new = float(np.abs(found.engine_T - found.learner_T)[known].sum())
    to_old = float(np.abs(found.engine_T - found.previous_T)[known].sum())
    moved = float(np.abs(found.learner_T - found.previous_T)[known].sum())
    if not moved or not to_new:
        return 0.0
    return to_new / to_old if to_old else np.inf
