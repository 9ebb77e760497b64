"""Lengths: how long responses get. Kaplan and Meier's estimate (JASA 1958) over the finished and the unfinished ones.

The finished ones alone would be the short ones: a response that is under way at k tokens counts among those that got as
far as k."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

BINS = 128
REMEMBER = 16_384
"""Responses after which what was counted before counts half: lengths change as the policy does."""


class Lengths:
    """`longest`: the most model tokens that a response can have."""

    def __init__(self, longest: int) -> None:
        self.positions_K = np.arange(BINS + 1) * (longest / BINS)
        self._per_bin = longest / BINS
        self._ended_K = np.zeros(BINS)
        self.ended = 0
        """Responses that have ended since the start."""

    def finished(self, tokens: Iterable[int]) -> None:
        for n in tokens:
            self._ended_K[self._bin(n)] += 1
            self.ended += 1
        if self._ended_K.sum() > REMEMBER:
            self._ended_K *= 0.5

    def survival(self, under_way: Iterable[int]) -> np.ndarray:
        """[K + 1] the share of responses that are longer than each of `positions_K`; `under_way`: tokens so far of the
        unfinished ones."""
        live_K = np.bincount([self._bin(n) for n in under_way], minlength=BINS)
        # Who is under way in bin k has survived the bins before it, and says nothing of this one.
        at_risk_K = _at_or_beyond(self._ended_K) + _at_or_beyond(live_K) - live_K
        ends_K = np.divide(self._ended_K, at_risk_K, out=np.zeros(BINS), where=at_risk_K > 0)
        return np.concatenate([[1.0], np.cumprod(1 - ends_K)])

    def reach(self, survival_K: np.ndarray, responses: int) -> float:
        """Tokens that one of so many responses may be expected to get to, and no further."""
        return (
            float(self.positions_K[np.flatnonzero(survival_K * responses < 1)[0]])
            if survival_K[-1] * responses < 1
            else float(self.positions_K[-1])
        )

    def _bin(self, tokens: int) -> int:
        return min(BINS - 1, int(tokens / self._per_bin))


def _at_or_beyond(counts_K: np.ndarray) -> np.ndarray:
    return np.cumsum(counts_K[::-1])[::-1]
