"""A user's policy loss, `LossInputs` -> the loss of each token: how it is found, and what is said if it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import MethodBroken
from ...user_code import plugins
from ..user_function import locate_faults
from .base import LossFn, LossInputs

if TYPE_CHECKING:
    import torch


POLICY_LOSS = plugins.Place(
    "policy loss",
    "actor.policy_loss_type",
    "(inputs: LossInputs) -> a tensor [b, L-1], the loss of each token",
    {},
    plugins.takes(1),
)


def load(name: str) -> LossFn:
    """Return a user's loss function, wrapped so that its faults are named.

    Calling it raises MethodBroken, with file and line, if the function raises or returns no loss of each token.

    Raises:
        ConfigError: The name cannot be loaded (plugins.py).
    """
    fn = plugins.load(POLICY_LOSS, name)

    def loss(inputs: LossInputs) -> torch.Tensor:
        with locate_faults(POLICY_LOSS, name, fn):
            per_token = fn(inputs)
        shape = getattr(per_token, "shape", None)
        if shape != inputs.log_probs.shape or not getattr(per_token, "requires_grad", False):
            raise MethodBroken(
                f"actor.policy_loss_type = {name!r}: {plugins.location(fn)}: it returned {type(per_token).__name__} of"
                f" shape {shape}, not a loss of each token with a gradient, {tuple(inputs.log_probs.shape)}. Leave the"
                " mean to the trainer (actor.loss_agg_mode)."
            )
        return per_token

    return loss
