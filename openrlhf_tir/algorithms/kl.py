"""KL to a reference policy: estimators per token, the gradient of the loss form, and the coefficient that follows a
target.

With l = log pi(y_t) - log ref(y_t) of a token y_t that the policy sampled (Schulman, joschu.net/blog/kl-approx.html):

    k1 = l                      unbiased, of either sign
    k2 = l^2 / 2                never negative, biased
    k3 = exp(-l) - 1 + l        never negative, unbiased

In the reward, r_t <- r_t - beta * k(l_t): with k1 the policy gradient of the penalty is that of KL(pi || ref), since
grad KL(pi || ref) = E_pi[l * grad log pi]. In the loss, the gradient through an estimator's formula is another matter:

    k1   grad log pi                 zero on average: no penalty at all
    k2   l * grad log pi             the gradient of KL(pi || ref), the same as k1 in the reward
    k3   (1 - exp(-l)) grad log pi   that of the forward KL(ref || pi), to first order in l the same

`unbiased` keeps the estimator's value and takes the gradient w * l * grad log pi for all three, w = pi / mu (at most
MAX_WEIGHT), mu being the policy that sampled: tokens of older weights count as OpenRLHF's algo.kl.unbiased_gradient
makes them count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

MAX_WEIGHT = 10.0
"""Bound of the weight pi / mu, which has none of its own off-policy. OpenRLHF's KL_IS_WEIGHT_CLIP."""
MAX_VALUE = 10.0
"""A token's estimate stays within +-MAX_VALUE, so that one token of a broken reference is not the whole loss.
OpenRLHF's compute_approx_kl has the same bound."""


def estimate(log_ratio: torch.Tensor, estimator: str) -> torch.Tensor:
    """Return the estimate of the KL divergence per token.

    Args:
        log_ratio: l, of any shape.
        estimator: "k1", "k2" or "k3".
    """
    if estimator == "k1":
        value = log_ratio
    elif estimator == "k2":
        value = log_ratio.square() / 2
    else:
        # Below -MAX_VALUE k3 is beyond the bound anyway, and exp must not overflow into 0 * inf in the backward.
        bounded = log_ratio.clamp(min=-MAX_VALUE)
        value = bounded.neg().exp() - 1 + bounded
    return value.clamp(-MAX_VALUE, MAX_VALUE)


def loss(
    log_probs: torch.Tensor, reference: torch.Tensor, rollout: torch.Tensor, estimator: str, *, unbiased: bool
) -> torch.Tensor:
    """Return the penalty per token, in the shape of the log-probabilities.

    Args:
        log_probs: log pi, the only argument that takes a gradient.
        reference: log ref.
        rollout: log mu, of the policy that sampled.
        estimator: "k1", "k2" or "k3".
        unbiased: Take the gradient w * l * grad log pi instead of that of the estimator's formula.
    """
    log_ratio = log_probs - reference
    value = estimate(log_ratio, estimator)
    if not unbiased:
        return value
    weight = (log_probs - rollout).exp().clamp(max=MAX_WEIGHT).detach()
    surrogate = weight * log_ratio.square() / 2
    return value.detach() + surrogate - surrogate.detach()


def penalty_to_go(kl: np.ndarray, own: np.ndarray, coef: float, gamma: float) -> np.ndarray:
    """Return the discounted sum of the penalties -coef * kl of a token and of those after it.

    The distance is counted in tokens of the response, as `returns_to_go` of the advantages counts it.

    Args:
        kl: [T], the estimate per token.
        own: [T] bool, True where the policy's own token is penalised.
        coef: The coefficient beta.
        gamma: Discount per token.

    Returns:
        [T] float64, 0.0 where not `own`.
    """
    penalties = np.zeros(len(kl))
    penalty = 0.0
    next_position = len(kl)
    for t in reversed(np.flatnonzero(own)):
        penalty = gamma ** (next_position - t) * penalty - coef * float(kl[t])
        penalties[t] = penalty
        next_position = t
    return penalties


@dataclass(slots=True)
class Coefficient:
    """The coefficient beta of the KL penalty.

    Without a target it is constant. With one (Ziegler et al., arXiv 1909.08593) it is multiplied after each update by

        1 + clip(kl / target - 1, -0.2, 0.2) * samples / horizon

    Attributes:
        value: The present coefficient.
        target: The KL divergence to aim at; None for a constant coefficient.
        horizon: Number of samples over which the coefficient adapts.
    """

    value: float
    target: float | None = None
    horizon: int = 10_000

    def update(self, kl: float, samples: int) -> None:
        """Adapt the coefficient after an update.

        Args:
            kl: Mean divergence over the update's own tokens.
            samples: Trajectories of the batch.
        """
        if self.target is not None:
            error = min(max(kl / self.target - 1, -0.2), 0.2)
            self.value *= 1 + error * samples / self.horizon
