"""Advantage estimators, by the name that algo.advantage.estimator gives. One file each: formula, paper, edge case.

A user's estimator is a function `AdvantageInputs` -> one array [T] per trajectory, or an `Estimator`, which also says
whether the batch is whitened (docs/algorithms.md).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from ...errors import MethodBroken
from ...user_code import plugins
from ..user_function import locate_faults
from .base import AdvantageFn, AdvantageInputs, Estimator
from .dr_grpo import dr_grpo
from .flash_reinforce import flash_reinforce
from .gae import gae
from .group_norm import group_norm
from .opo import opo
from .reinforce import reinforce
from .reinforce_baseline import reinforce_baseline
from .rloo import rloo

ESTIMATORS: dict[str, Estimator] = {
    "reinforce": reinforce,
    "reinforce_baseline": reinforce_baseline,
    "rloo": rloo,
    "group_norm": group_norm,
    "dr_grpo": dr_grpo,
    "opo": opo,
    "flash_reinforce": flash_reinforce,
    "gae": gae,
}


ESTIMATOR = plugins.Place(
    "advantage estimator",
    "algo.advantage.estimator",
    "a function (inputs: AdvantageInputs) -> one array [T] per trajectory, or Estimator(function, whiten=True)",
    dict.fromkeys(ESTIMATORS, __name__),
    lambda thing: None if isinstance(thing, Estimator) else plugins.takes(1)(thing),
)


def get_estimator(name: str) -> Estimator:
    """Return a registered or a user's estimator. A plain function f of the user is Estimator(f, whiten=False).

    Raises:
        ConfigError: The name cannot be loaded.
    """
    if name in ESTIMATORS:
        return ESTIMATORS[name]
    loaded = plugins.load(ESTIMATOR, name)
    estimator = loaded if isinstance(loaded, Estimator) else Estimator(loaded, whiten=False)
    return replace(estimator, fn=partial(_checked, estimator.fn, name))


def _checked(fn: AdvantageFn, name: str, inputs: AdvantageInputs) -> list[np.ndarray]:
    """Call a user's function and return its result as float64 arrays that fit the masks.

    Raises:
        MethodBroken: The function raised, or returned something else; with file and line.
    """
    with locate_faults(ESTIMATOR, name, fn):
        advantages = [np.asarray(advantage, np.float64) for advantage in fn(inputs)]
    message_prefix = f"algo.advantage.estimator = {name!r}: {plugins.location(fn)}"
    shapes = [advantage.shape for advantage in advantages]
    expected_shapes = [mask.shape for mask in inputs.trained_G]
    if shapes != expected_shapes:
        raise MethodBroken(
            f"{message_prefix}: it returned arrays of shapes {shapes}, and the responses have {expected_shapes}."
            " Return one advantage per token, 0 where not trained."
        )
    if not all(np.isfinite(advantage).all() for advantage in advantages):
        raise MethodBroken(
            f"{message_prefix}: it returned an advantage that is not finite, for rewards {inputs.rewards_G.tolist()}."
        )
    return advantages


__all__ = ["ESTIMATORS", "AdvantageFn", "AdvantageInputs", "Estimator", "get_estimator"]
