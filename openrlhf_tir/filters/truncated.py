"""Drop groups of which more than a share hit the length limit: their rewards tell the budget, not the policy."""

from __future__ import annotations

from collections.abc import Callable

from ..types import KEEP, Group, Verdict


def truncated(max_share: float) -> Callable[[Group], Verdict]:
    def judge(group: Group) -> Verdict:
        valid = group.valid
        cut = sum(t.finish_reason == "length" for t in valid)
        return Verdict(False, "truncated") if cut > max_share * len(valid) else KEEP

    return judge
