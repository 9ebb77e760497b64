"""Advantage estimators: algo.advantage.estimator -> Estimator. One file each: formula, paper, edge case."""

from __future__ import annotations

from ...errors import unknown
from .base import AdvantageFn, AdvantageInputs, Estimator
from .dr_grpo import dr_grpo
from .group_norm import group_norm
from .reinforce import reinforce
from .reinforce_baseline import reinforce_baseline
from .rloo import rloo

ESTIMATORS: dict[str, Estimator] = {
    "reinforce": Estimator(reinforce, whiten=True),
    "reinforce_baseline": Estimator(reinforce_baseline, whiten=True),
    "rloo": Estimator(rloo, whiten=False),
    "group_norm": Estimator(group_norm, whiten=False),
    "dr_grpo": Estimator(dr_grpo, whiten=False),
}


def get_estimator(name: str) -> Estimator:
    """Raises ConfigError for a name that is not in the registry."""
    if name not in ESTIMATORS:
        raise unknown("advantage estimator", name, ESTIMATORS, "Set algo.advantage.estimator to one of them.")
    return ESTIMATORS[name]


__all__ = ["ESTIMATORS", "AdvantageFn", "AdvantageInputs", "Estimator", "get_estimator"]
