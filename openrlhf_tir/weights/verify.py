"""Verify: what the engine sampled after a push, against the learner's own log-probs. numpy only.

The digest proves that the bytes arrived; only this proves that they were *loaded*: a tied lm_head that keeps its old
packed copy, a layer that the file did not contain or a stale prefix cache all pass the digest and fail here.

In fp32 the worst token decides. In lower precision a single rare token may be off by a nat with nothing wrong, so the
bulk decides: median and 95 % quantile, each within four times what it was on weights that both sides loaded from disk,
and never beyond a ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from ..types import Completion

QUANTILE = 0.95
FACTOR = 4.0
SMALLEST = 1e-3
"""Nats; a tolerance calibrated on a few hundred tokens must leave room for rarer ones."""
OUTLIER = 10.0
"""Times the ceiling: what no rounding does to a single token either."""


class Disagreement(NamedTuple):
    """|engine - learner| log-prob over the canary's tokens, in nats. All are inf when a log-prob is not finite."""

    median: float
    high: float
    """The 95 % quantile of the differences, in nats."""
    most: float

    def __str__(self) -> str:
        return (
            f"{self.most:.3g} nats (median {self.median:.3g}, 95 % quantile {self.high:.3g})"
            if np.isfinite(self.most)
            else "log-probs that are not finite"
        )


class Tolerance(NamedTuple):
    """The largest Disagreement that is accepted, part by part."""

    median: float
    high: float
    most: float

    @classmethod
    def exact(cls, nats: float) -> Self:
        """A tolerance of so many nats for every single token."""
        return cls(nats, nats, nats)

    @classmethod
    def calibrated(cls, found: Sequence[Disagreement], ceiling: float) -> Self:
        """From engines that hold the learner's weights for sure: they differ by numerics. At most `ceiling` nats."""
        median, high = (
            min(ceiling, max(SMALLEST, FACTOR * max(part))) for part in zip(*[d[:2] for d in found], strict=True)
        )
        return cls(median, high, OUTLIER * ceiling)

    def accepts(self, d: Disagreement) -> bool:
        return d.median <= self.median and d.high <= self.high and d.most <= self.most

    def __str__(self) -> str:
        if self.median == self.most:
            return f"{self.most:g} nats"
        return f"median {self.median:.2g}, 95 % quantile {self.high:.2g}, most {self.most:.2g} nats"

    def __format__(self, spec: str) -> str:
        """With a format: the 95 % quantile as a number."""
        return format(self.high, spec) if spec else str(self)


def disagreement(completions: Sequence[Completion], learner_logprobs: Sequence[np.ndarray]) -> Disagreement:
    """`learner_logprobs[i]` [T_i] is aligned with the sampled tokens of `completions[i]`.

    Raises ValueError when there is nothing to compare or the lengths disagree: that is a bug, not a bad push.
    """
    lengths = [len(c.logprobs) for c in completions]
    if not sum(lengths) or lengths != [len(lp) for lp in learner_logprobs]:
        raise ValueError(
            f"canary of {lengths} tokens cannot be compared with learner scores of"
            f" {[len(lp) for lp in learner_logprobs]} tokens"
        )
    engine_T = np.concatenate([c.logprobs for c in completions]).astype(np.float64)
    learner_T = np.concatenate([np.asarray(lp, np.float64) for lp in learner_logprobs])
    diff_T = np.abs(engine_T - learner_T)
    if not np.isfinite(diff_T).all():
        return Disagreement(np.inf, np.inf, np.inf)
    return Disagreement(
        float(np.median(diff_T)), float(np.quantile(diff_T, QUANTILE, method="higher")), float(diff_T.max())
    )
