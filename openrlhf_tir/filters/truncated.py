"""Drop groups in which too many responses hit the length limit: their rewards measure the limit, not the policy."""

from __future__ import annotations

from collections.abc import Callable

from ..types import KEEP, Group, Verdict


def truncated(max_share: float) -> Callable[[Group], Verdict]:
    """Return the filter that drops groups of which more than `max_share` of the responses are truncated."""

    def apply(group: Group) -> Verdict:
        valid = group.valid
        num_truncated = sum(trajectory.finish_reason == "length" for trajectory in valid)
        return Verdict(False, "truncated") if num_truncated > max_share * len(valid) else KEEP

    return apply
