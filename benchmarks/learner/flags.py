"""How many of OpenRLHF's train_ppo_ray flags have their effect here, counted where their refusals are decided."""

from __future__ import annotations

from openrlhf_tir.config.openrlhf_flags import RULES, Becomes, Implied, Same


def honoured() -> int:
    """Not those that are refused, nor those that are accepted at a neutral value only."""
    return sum(isinstance(rule, Same | Becomes | Implied) for rule in RULES.values())
