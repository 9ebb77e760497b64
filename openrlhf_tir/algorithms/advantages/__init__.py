"""Advantage estimators: algo.advantage.estimator -> Estimator. One file each: formula, paper, edge case.

One of one's own is a function AdvantageInputs -> one array [T] per trajectory, or an `Estimator` that also says whether
the batch is whitened (docs/algorithms.md).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from ... import plugins
from ...errors import MethodBroken
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
    """The registered estimator, or one's own: a plain function is not whitened. Raises ConfigError for a name that
    cannot be loaded."""
    if name in ESTIMATORS:
        return ESTIMATORS[name]
    own = plugins.load(ESTIMATOR, name)
    made = own if isinstance(own, Estimator) else Estimator(own, whiten=False)
    return replace(made, fn=partial(_checked, made.fn, name))


def _checked(fn: AdvantageFn, name: str, inputs: AdvantageInputs) -> list[np.ndarray]:
    """What a function of one's own returned, as float64 arrays that fit the masks. Raises MethodBroken with file, line
    and what is wrong."""
    try:
        advantages = [np.asarray(a, np.float64) for a in fn(inputs)]
    except Exception as e:
        at = plugins.raised_at(e, plugins.source_file(fn)) or plugins.location(fn)
        raise MethodBroken(
            f"algo.advantage.estimator = {name!r}: {at}: {type(e).__name__}: {e}. It is a bug in that line."
        ) from e
    said = f"algo.advantage.estimator = {name!r}: {plugins.location(fn)}"
    got, wanted = [a.shape for a in advantages], [m.shape for m in inputs.trained_G]
    if got != wanted:
        raise MethodBroken(
            f"{said}: it returned arrays of shapes {got}, and the responses have {wanted}."
            " One advantage per token, 0 where not trained."
        )
    if not all(np.isfinite(a).all() for a in advantages):
        raise MethodBroken(
            f"{said}: it returned an advantage that is not finite, for rewards {inputs.rewards_G.tolist()}."
        )
    return advantages


__all__ = ["ESTIMATORS", "AdvantageFn", "AdvantageInputs", "Estimator", "get_estimator"]
