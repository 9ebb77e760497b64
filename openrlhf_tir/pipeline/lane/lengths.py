"""How long responses get: the Kaplan-Meier estimate (JASA 1958) over finished and unfinished responses.

The finished responses alone would be the short ones. A response that is under way at k tokens counts among those that
got as far as k.

Arrays that end in _K have one element per bin of lengths.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

BINS = 128
REMEMBER = 16_384
"""Responses after which all counts are halved: lengths change as the policy changes."""


class Lengths:
    """Counts the lengths of finished responses and estimates how many responses get longer than a length."""

    def __init__(self, longest: int) -> None:
        """Create an estimator.

        Args:
            longest: Model tokens that a response can have at most.
        """
        self.positions_K = np.arange(BINS + 1) * (longest / BINS)
        self._per_bin = longest / BINS
        self._ended_K = np.zeros(BINS)
        self.ended = 0
        """Responses that have finished since the start."""

    def finished(self, tokens: Iterable[int]) -> None:
        """Count finished responses by their model tokens."""
        for n in tokens:
            self._ended_K[self._bin(n)] += 1
            self.ended += 1
        if self._ended_K.sum() > REMEMBER:
            self._ended_K *= 0.5

    def survival(self, under_way: Iterable[int]) -> np.ndarray:
        """Return the share of responses that are longer than each of `positions_K`.

        Args:
            under_way: Model tokens so far of the unfinished responses.

        Returns:
            [K + 1] float64, from 1.0 downwards.
        """
        live_K = np.bincount([self._bin(n) for n in under_way], minlength=BINS)
        # A response that is under way in bin k has survived the bins before it, and says nothing about this one.
        at_risk_K = _at_or_beyond(self._ended_K) + _at_or_beyond(live_K) - live_K
        ends_K = np.divide(self._ended_K, at_risk_K, out=np.zeros(BINS), where=at_risk_K > 0)
        return np.concatenate([[1.0], np.cumprod(1 - ends_K)])

    def reach(self, survival_K: np.ndarray, responses: int) -> float:
        """Return the length that fewer than one of `responses` responses is expected to exceed, in tokens."""
        rarely_exceeded_K = np.flatnonzero(survival_K * responses < 1)
        index = rarely_exceeded_K[0] if len(rarely_exceeded_K) else -1
        return float(self.positions_K[index])

    def _bin(self, tokens: int) -> int:
        return min(BINS - 1, int(tokens / self._per_bin))


def _at_or_beyond(counts_K: np.ndarray) -> np.ndarray:
    return np.cumsum(counts_K[::-1])[::-1]
