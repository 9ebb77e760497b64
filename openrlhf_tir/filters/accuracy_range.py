"""Keep prompts that are neither too hard nor too easy for the policy: lo < mean(correct) < hi, both strict.

Source: openrlhf/trainer/ppo_trainer_async.py of ZeroTIR's code; the paper uses 0.2..0.8, its scripts 0.0..0.8 to
0.1..0.8."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..types import KEEP, Group, Verdict

EPSILON = 1e-6


def within(correct_G: Sequence[float], lo: float, hi: float) -> str:
    """Empty where lo + 1e-6 < mean < hi - 1e-6, else the reason. An empty group is too hard."""
    mean = float(np.mean(correct_G)) if len(correct_G) else 0.0
    if mean <= lo + EPSILON:
        return "accuracy_low"
    return "accuracy_high" if mean >= hi - EPSILON else ""


def accuracy_range(lo: float, hi: float) -> Callable[[Group], Verdict]:
    def judge(group: Group) -> Verdict:
        reason = within([t.parts["correct"] for t in group.valid], lo, hi)
        return Verdict(False, reason) if reason else KEEP

    return judge
