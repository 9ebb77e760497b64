"""Drop groups in which length tells right from wrong: |mean length of the correct - mean length of the wrong| >=
max_gap tokens.

Source: exp_statistics.length_filter of ZeroTIR's code, with max_gap 1000. Without a correct or without a wrong response
the gap is undefined and the group is dropped, as there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..types import KEEP, Group, Verdict


def gap(lengths_G: Sequence[int], correct_G: Sequence[float]) -> float:
    """In tokens; infinite where one side is empty. A response that is neither (correct exactly 0.5) is on no side."""
    right = [n for n, c in zip(lengths_G, correct_G, strict=True) if c > 0.5]
    wrong = [n for n, c in zip(lengths_G, correct_G, strict=True) if c < 0.5]
    return abs(float(np.mean(right)) - float(np.mean(wrong))) if right and wrong else float("inf")


def length_gap(max_gap: float) -> Callable[[Group], Verdict]:
    def judge(group: Group) -> Verdict:
        valid = group.valid
        drops = gap([t.response_tokens for t in valid], [t.parts["correct"] for t in valid]) >= max_gap
        return Verdict(False, "length_gap") if drops else KEEP

    return judge
