"""Call a user's estimator and policy loss in a worker process, as the learner calls them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...algorithms.advantages import ESTIMATOR, AdvantageInputs, get_estimator
from ...algorithms.losses import own as own_loss
from ...algorithms.losses.base import LossInputs
from ...errors import MethodBroken, MethodError
from ...rewards import accept
from ...user_code import plugins
from ...user_code.failures import UserFunction


class LearnerCodeError(MethodError):
    """A user's estimator or policy loss failed."""

    reason = "learner_code_error"


@dataclass(frozen=True)
class TriedEstimator(UserFunction):
    """One estimator on one group."""

    def __call__(self, inputs: AdvantageInputs) -> None:
        """Apply the estimator to rewards [G] and masks [T]. Raises LearnerCodeError with file, line and traceback."""
        registered = plugins.load(ESTIMATOR, self.name)
        function = getattr(registered, "fn", registered)
        with accept.LoadedFunction(ESTIMATOR, self.name, function, LearnerCodeError).guarded():
            function(inputs)
        try:
            get_estimator(self.name)(inputs)
        except MethodBroken as error:
            raise LearnerCodeError(str(error)) from None


@dataclass(frozen=True)
class TriedLoss(UserFunction):
    """One policy loss on a micro batch of shape [2, 5] that has a padded row."""

    clip: tuple[float, float]
    options: dict[str, Any]

    def __call__(self) -> None:
        """Compute loss and gradient. Raises LearnerCodeError with file, line and traceback."""
        import torch

        log_probs = torch.full((2, 5), -0.5, requires_grad=True)
        old = torch.full((2, 5), -0.4)
        mask = torch.tensor([[1.0, 1, 1, 1, 0], [1, 0, 0, 1, 1]])
        advantages = torch.tensor([[1.0], [-1.0]]).expand(2, 5) * mask
        inputs = LossInputs(log_probs, old, old.clone(), advantages, mask, self.clip, self.options)
        loaded = accept.LoadedFunction.load(own_loss.POLICY_LOSS, self.name, LearnerCodeError)
        with loaded.guarded():
            loaded.function(inputs)
        try:
            (own_loss.load(self.name)(inputs) * mask).sum().backward()
        except MethodBroken as error:
            raise LearnerCodeError(str(error)) from None
        if log_probs.grad is None or not bool(torch.isfinite(log_probs.grad).all()):
            location = plugins.location(loaded.function)
            raise LearnerCodeError(f"actor.policy_loss_type = {self.name!r}: {location}: its gradient is not finite.")


def estimator_inputs(
    rewards: list[float], masks: list[np.ndarray], gamma: float, options: dict[str, Any]
) -> AdvantageInputs:
    """Return what the learner would give an estimator for one group, as if the batch were this group alone."""
    rewards_G = np.asarray(rewards, np.float64)
    return AdvantageInputs(rewards_G, masks, gamma, options, rewards_G)
