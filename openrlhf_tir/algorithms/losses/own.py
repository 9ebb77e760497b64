"""A user's policy loss: `LossInputs` -> the loss of each token, not reduced. Only aggregate.py knows means and scaling.

Shapes: b rows of a micro batch, L-1 positions of a padded row; entry t is about token t+1. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...errors import MethodBroken
from ...user_code import plugins
from ...user_code.failures import described

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What a policy loss receives. All tensors are [b, L-1] float32.

    Attributes:
        log_probs: Of the learner's weights. The only tensor that takes a gradient.
        old_log_probs: Of the ratio's denominator (learner/objective.py).
        rollout_log_probs: Of the policy that sampled.
        advantages: Advantage of each token, 0.0 where not trained.
        mask: 1.0 where the token is trained.
        clip: (low, high) of actor.eps_clip_low_high.
        options: The value of actor.policy_loss_options.
    """

    log_probs: torch.Tensor
    old_log_probs: torch.Tensor
    rollout_log_probs: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor
    clip: tuple[float, float]
    options: Mapping[str, Any] = field(default_factory=dict)


OwnLoss = Callable[[LossInputs], "torch.Tensor"]
POLICY_LOSS = plugins.Place(
    "policy loss",
    "actor.policy_loss",
    "(inputs: LossInputs) -> a tensor [b, L-1], the loss of each token",
    {},
    plugins.takes(1),
)


def load(name: str) -> OwnLoss:
    """Return a user's loss function, wrapped so that its faults are named.

    Calling it raises MethodBroken, with file and line, if the function raises or returns no loss of each token.

    Raises:
        ConfigError: The name cannot be loaded (plugins.py).
    """
    fn = plugins.load(POLICY_LOSS, name)

    def loss(inputs: LossInputs) -> torch.Tensor:
        try:
            per_token = fn(inputs)
        except Exception as e:
            location = plugins.raised_at(e, plugins.source_file(fn)) or plugins.location(fn)
            raise MethodBroken(
                f"actor.policy_loss = {name!r}: {location}: {described(e)}. It is a bug in that line."
            ) from e
        shape = getattr(per_token, "shape", None)
        if shape != inputs.log_probs.shape or not per_token.requires_grad:
            raise MethodBroken(
                f"actor.policy_loss = {name!r}: {plugins.location(fn)}: it returned {type(per_token).__name__} of shape"
                f" {shape}, not a loss of each token with a gradient, {tuple(inputs.log_probs.shape)}. Leave the mean"
                " to the trainer (actor.loss_agg_mode)."
            )
        return per_token

    return loss
