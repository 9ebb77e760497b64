"""Drop groups whose rewards are all equal: advantages relative to the mean are zero, so nothing is learned."""

from __future__ import annotations

from ..types import KEEP, Group, Verdict

EPSILON = 1e-9
"""Rewards that differ by no more than this count as equal."""


def zero_variance(group: Group) -> Verdict:
    """Keep the group if its rewards differ."""
    rewards_G = [trajectory.scored for trajectory in group.valid]
    spread = max(rewards_G) - min(rewards_G) if rewards_G else 0.0
    return KEEP if spread > EPSILON else Verdict(False, "zero_variance")
