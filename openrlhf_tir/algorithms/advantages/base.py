"""What an advantage estimator receives and returns: `AdvantageInputs` (one group) -> advantages per trajectory.

numpy only. Shapes: G valid trajectories of a group, T response tokens of one trajectory (model and environment tokens
in order). A name that ends in _G holds one element per trajectory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class AdvantageInputs:
    """One group, without its failed trajectories: an infrastructure fault has no reward and moves no statistic.

    Attributes:
        rewards_G: [G] float64, the outcome reward of each trajectory.
        trained_G: G masks [T] bool, True where the token is trained.
        gamma: Discount per token.
        options: The value of algo.advantage.options.
        batch_rewards: Rewards of all valid trajectories of the rollout batch, those of this group included.
    """

    rewards_G: np.ndarray
    trained_G: Sequence[np.ndarray]
    gamma: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)
    batch_rewards: np.ndarray = field(default_factory=lambda: np.zeros(0))


AdvantageFn = Callable[[AdvantageInputs], list[np.ndarray]]
"""One group -> G arrays [T], each token's advantage, or with `Estimator.critic` its reward; 0.0 where not trained. A
user's function raises MethodBroken, with file and line, whatever fails in it (`get_estimator`); ours raise nothing."""


@dataclass(frozen=True, slots=True)
class Estimator:
    """A function of one group, and its properties. Settings' checks and the learner read the properties here.

    Attributes:
        fn: The function.
        whiten: True if the learner whitens the batch's advantages afterwards (whiten.py).
        critic: True if `fn` returns rewards per token. The learner then has a critic, and GAE turns its values and
            these rewards into advantages (gae.py).
        by_group: True if `fn` does not read `AdvantageInputs.batch_rewards`. It need not have a baseline of the group.
        discounts: True if algo.advantage.gamma discounts the rewards. If False, it discounts no KL penalty either.
        compares_responses: True if the advantages of a single response to a prompt are all zero.
        centred_over_tokens: True if the advantages of a group have a mean of 0 over its trained tokens, and not over
            its responses where these differ in length.
        method: Name of the method, for people.
    """

    fn: AdvantageFn
    whiten: bool
    critic: bool = False
    by_group: bool = False
    discounts: bool = True
    compares_responses: bool = False
    centred_over_tokens: bool = False
    method: str = ""

    @property
    def whole_batch(self) -> bool:
        """True if a group's advantages need the whole batch. pipeline.early_accumulation must then be off."""
        return self.whiten or self.critic or not self.by_group

    def __call__(self, inputs: AdvantageInputs) -> list[np.ndarray]:
        return self.fn(inputs)


def minus_baseline(
    rewards_G: np.ndarray, baseline: np.ndarray | float, averaged: np.ndarray | None = None
) -> np.ndarray:
    """Return the rewards minus a baseline that is a mean of rewards.

    It is exactly 0 if all of these are equal. Their rounded mean may differ from them by 1e-17, of which an estimator
    that divides by their std would make an advantage.

    Args:
        rewards_G: [G] float64.
        baseline: [G] or a number: a mean of the rewards.
        averaged: The rewards whose mean it is; None: `rewards_G`.
    """
    if np.ptp(rewards_G if averaged is None else averaged) == 0.0:
        return np.zeros_like(rewards_G, dtype=np.float64)
    return rewards_G - baseline


def returns_to_go(score: float, trained: np.ndarray, gamma: float) -> np.ndarray:
    """Pay `score` at the last trained token and discount it back to every trained token.

    The distance counts all tokens of the response, environment tokens included, as OpenRLHF's get_cumulative_returns
    does. A trajectory without a trained token gets all zeros: nothing of it enters the loss.

    Args:
        score: The trajectory's score.
        trained: [T] bool, True where the token is trained.
        gamma: Discount per token.

    Returns:
        [T] float64, 0.0 where not trained.
    """
    positions = np.flatnonzero(trained)
    returns = np.zeros(len(trained))
    if len(positions):
        returns[positions] = score * gamma ** (positions[-1] - positions)
    return returns


def over_tokens(scores_G: np.ndarray, trained_G: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Give each trajectory's score to all its trained tokens.

    Args:
        scores_G: [G] float64.
        trained_G: G masks [T] bool.

    Returns:
        G arrays [T] float64, 0.0 where not trained.
    """
    return [np.where(trained, score, 0.0) for score, trained in zip(scores_G, trained_G, strict=True)]
