"""Drop groups whose rewards are all equal: advantages relative to the mean are zero, so nothing is learned."""

from __future__ import annotations

from ..types import KEEP, Group, Verdict

EPSILON = 1e-9


def zero_variance(group: Group) -> Verdict:
    rewards_G = [t.scored for t in group.valid]
    spread = max(rewards_G) - min(rewards_G) if rewards_G else 0.0
    return KEEP if spread > EPSILON else Verdict(False, "zero_variance")
