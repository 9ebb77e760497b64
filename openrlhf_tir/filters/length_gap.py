"""Drop groups in which length separates right from wrong answers.

    |mean length of the right answers - mean length of the wrong answers| >= max_gap tokens

Source: exp_statistics.length_filter of ZeroTIR's code, with max_gap 1000. If there is no right or no wrong answer, the
gap is undefined and the group is dropped, as there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..types import KEEP, Group, Verdict


def gap(lengths_G: Sequence[int], correct_G: Sequence[float]) -> float:
    """Return the difference of the mean lengths; infinite if there is no right or no wrong answer.

    Args:
        lengths_G: [G] response lengths in tokens.
        correct_G: [G] above 0.5 for a right answer, below it for a wrong one; exactly 0.5 counts as neither.
    """
    right = [length for length, correct in zip(lengths_G, correct_G, strict=True) if correct > 0.5]
    wrong = [length for length, correct in zip(lengths_G, correct_G, strict=True) if correct < 0.5]
    if not right or not wrong:
        return float("inf")
    return abs(float(np.mean(right)) - float(np.mean(wrong)))


def length_gap(max_gap: float) -> Callable[[Group], Verdict]:
    """Return the filter that drops groups with a gap of `max_gap` tokens or more."""

    def apply(group: Group) -> Verdict:
        valid = group.valid
        lengths_G = [trajectory.response_tokens for trajectory in valid]
        correct_G = [trajectory.parts["correct"] for trajectory in valid]
        return Verdict(False, "length_gap") if gap(lengths_G, correct_G) >= max_gap else KEEP

    return apply
