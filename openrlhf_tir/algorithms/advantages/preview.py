"""Advantages of one group, for people: what the estimator makes of a group's rewards, before the batch is known."""

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
        masks = [np.concatenate([s.is_model for s in t.sequences]) for t in valid]
        rewards = np.asarray(meta.rewards, np.float64)
        inputs = AdvantageInputs(rewards, masks, gamma, options, rewards)
        try:
            given = estimator.fn(inputs)
        except MethodBroken:  # the learner says where; here it is only shown
            return None
        return [float(a[m].mean()) if m.any() else 0.0 for a, m in zip(given, masks, strict=True)]

    return advantages
