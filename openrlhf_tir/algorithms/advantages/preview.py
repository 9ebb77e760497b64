"""Advantages of one group for people to read: what the estimator makes of its rewards, before the batch is known.

Nothing is trained by them. The rollout actor writes them beside the trajectories that it logs; those that train are
computed in learner/rows.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...errors import MethodBroken
from ...types import Group, GroupMeta
from . import get_estimator
from .base import AdvantageInputs


def group_advantages(
    name: str, *, credit: str, gamma: float, options: Mapping[str, Any]
) -> Callable[[GroupMeta, Group], list[float] | None]:
    """Return a function that gives each valid trajectory of a group its advantage, the mean over its trained tokens.

    The arguments are algo.advantage.estimator and the settings beside it.

    That function returns None where the learner alone knows the advantages: a critic judges, credit is given by turn,
    or the estimator reads the rewards of the whole batch. They are not whitened: that needs the whole batch.
    """
    estimator = get_estimator(name)
    needs_learner = estimator.critic or credit == "turn" or not estimator.by_group

    def advantages(meta: GroupMeta, group: Group) -> list[float] | None:
        valid = group.valid
        if needs_learner or len(valid) != len(meta.rewards) or not valid:
            return None
        masks_G = [np.concatenate([chain.is_model for chain in trajectory.sequences]) for trajectory in valid]
        rewards_G = np.asarray(meta.rewards, np.float64)
        try:
            advantages_G = estimator.fn(AdvantageInputs(rewards_G, masks_G, gamma, options, rewards_G))
        except MethodBroken:  # The learner raises it too, and there it ends the run.
            return None
        return [
            float(advantages_T[mask_T].mean()) if mask_T.any() else 0.0
            for advantages_T, mask_T in zip(advantages_G, masks_G, strict=True)
        ]

    return advantages
