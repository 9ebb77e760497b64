"""Keep prompts that are neither too hard nor too easy for the policy: low < mean(correct) < high, both strict.

Source: openrlhf/trainer/ppo_trainer_async.py of ZeroTIR's code. The paper uses 0.2 to 0.8, its scripts 0.0 to 0.8 and
0.1 to 0.8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..types import KEEP, Group, Verdict

EPSILON = 1e-6
"""Distance from a bound below which a mean counts as equal to it."""


def range_violation(correct_G: Sequence[float], low: float, high: float) -> str:
    """Return why a group is outside of the range; empty if it is inside. A group without samples is too hard.

    Args:
        correct_G: [G] 1.0 for a right answer, 0.0 for a wrong one.
        low: Lower bound of the mean, exclusive.
        high: Upper bound of the mean, exclusive.
    """
    mean = float(np.mean(correct_G)) if len(correct_G) else 0.0
    if mean <= low + EPSILON:
        return "accuracy_low"
    if mean >= high - EPSILON:
        return "accuracy_high"
    return ""


def accuracy_range(low: float, high: float) -> Callable[[Group], Verdict]:
    """Return the filter for a range of accuracies."""

    def apply(group: Group) -> Verdict:
        reason = range_violation([trajectory.parts["correct"] for trajectory in group.valid], low, high)
        return Verdict(False, reason) if reason else KEEP

    return apply
