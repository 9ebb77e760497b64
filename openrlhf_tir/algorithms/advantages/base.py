"""What an advantage estimator sees and returns: AdvantageInputs (one group) -> advantages [T] per trajectory. numpy
only.

Shapes: G valid trajectories of a group, T response tokens of one trajectory (model and environment tokens in order).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class AdvantageInputs:
    """One group. Failed trajectories are not in it: an infrastructure fault has no reward and moves no statistic.

    rewards_G [G] float64, one outcome reward per trajectory; trained_G: G masks [T] bool, True where trained."""

    rewards_G: np.ndarray
    trained_G: Sequence[np.ndarray]
    gamma: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)
    """What algo.advantage.options of the recipe says."""
    batch_rewards: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """Rewards of all valid trajectories of the rollout batch, this group's among them."""


AdvantageFn = Callable[[AdvantageInputs], list[np.ndarray]]


@dataclass(frozen=True, slots=True)
class Estimator:
    """`fn` turns one group into advantages; `whiten` says whether the batch's advantages are then whitened (whiten.py).

    `critic`: what `fn` gives are rewards per token; the learner has a critic, and GAE makes advantages of them
    (../gae.py). `by_group`: `fn` reads of the batch its group only, not AdvantageInputs.batch_rewards."""

    fn: AdvantageFn
    whiten: bool
    critic: bool = False
    by_group: bool = False

    @property
    def whole_batch(self) -> bool:
        """Whether a group's advantages are known only once the whole batch is there: pipeline.early_accumulation must
        be off."""
        return self.whiten or self.critic or not self.by_group

    def __call__(self, inputs: AdvantageInputs) -> list[np.ndarray]:
        return self.fn(inputs)


def returns_to_go(score: float, trained: np.ndarray, gamma: float) -> np.ndarray:
    """[T] float64: `score` paid at the last trained token, discounted back to every trained token; 0.0 elsewhere.

    The distance is counted in tokens of the response, environment tokens included, as OpenRLHF's get_cumulative_returns
    counts it. A trajectory without a trained token gets all zeros: nothing of it enters the loss.
    """
    positions = np.flatnonzero(trained)
    out = np.zeros(len(trained))
    if len(positions):
        out[positions] = score * gamma ** (positions[-1] - positions)
    return out


def over_tokens(scores_G: np.ndarray, inputs: AdvantageInputs, gamma: float = 1.0) -> list[np.ndarray]:
    """One score per trajectory -> advantages per token."""
    return [
        returns_to_go(float(score), trained, gamma) for score, trained in zip(scores_G, inputs.trained_G, strict=True)
    ]
