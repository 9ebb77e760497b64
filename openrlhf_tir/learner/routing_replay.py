"""Let a mixture of experts compute each token with the experts that sampled it (routing replay).

Engine and learner compute the same router logits up to rounding. Where two experts are nearly equal, rounding decides,
and the token is computed by another expert: its log-prob then differs by far more than rounding. With
`rollout.routing_replay` the engine returns the experts of each token, and the learner's routers choose those:

    router logits = W h                          the learner's own
    scores        = softmax(logits), sigmoid, ...    what the model makes of them
    experts       = topk(scores, k)              replaced by the given ones
    weights       = scores of these experts      so the gate's weights, and their gradients, are the learner's

The model's own router code runs, with one operation replaced: the `topk` that chooses k of all experts. So what a model
does before and after it (normalised weights, sigmoid scores, a bias of the choice, groups of experts) stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..errors import ConfigError
from .packing import OWN_EXPERTS

_LAYER = re.compile(r"\.layers\.(\d+)\.")
_TOPK = (torch.topk, torch.Tensor.topk)


class RoutingReplay:
    """The routers of one model, and the experts that they are to choose in its next forward pass."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Find the model's routers and replace their `forward`.

        Raises:
            ConfigError: The model is no mixture of experts, or has no router whose choice can be replaced.
        """
        self.routers = find_routers(model)
        if not self.routers:
            raise ConfigError(
                f"rollout.routing_replay needs a mixture of experts whose routers are modules of their own, and"
                f" {type(model).__name__} has none. Set rollout.routing_replay to false."
            )
        self._choices = {layer: _Choice() for layer in self.routers}
        for layer, router in self.routers.items():
            _wrap(router, self._choices[layer])

    def use(self, experts: torch.Tensor | None) -> None:
        """Set the experts of the next forward pass; they stay for layers that are computed again in the backward pass.

        Args:
            experts: [tokens, layers, k] int16, OWN_EXPERTS where the router chooses; None: it chooses all.
        """
        for layer, choice in self._choices.items():
            choice.experts = None if experts is None else experts[:, layer]


def find_routers(model: torch.nn.Module) -> dict[int, torch.nn.Module]:
    """Return the router of each layer that has experts, by the layer's index.

    A router is a module with `top_k` whose class is called so, as in transformers' models since version 5.
    """
    routers: dict[int, torch.nn.Module] = {}
    for name, module in model.named_modules():
        layer = _LAYER.search(f".{name}.")
        if layer and hasattr(module, "top_k") and type(module).__name__.lower().endswith("router"):
            routers[int(layer.group(1))] = module
    return routers


class _Choice:
    """What one router is to choose: [tokens, k] int16 or None."""

    experts: torch.Tensor | None = None


def _wrap(router: Any, choice: _Choice) -> None:
    """Replace a router's `forward` by one that chooses the given experts."""
    forward = router.forward
    # ZeRO-3 partitions the weight, whose own shape is then [0].
    count = next(iter(getattr(router.weight, "ds_shape", router.weight.shape)))

    def replayed(*args: Any, **kwargs: Any) -> Any:
        if choice.experts is None:
            return forward(*args, **kwargs)
        with _GivenExperts(choice.experts, count, int(router.top_k)):
            return forward(*args, **kwargs)

    router.forward = replayed


class _GivenExperts(TorchFunctionMode):
    """Replaces the choice of `k` of `count` experts inside the block."""

    def __init__(self, experts: torch.Tensor, count: int, k: int) -> None:
        super().__init__()
        self._experts = experts
        self._count = count
        self._k = k

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        result = func(*args, **options)
        if func not in _TOPK:
            return result
        scores = args[0] if args else options["input"]
        own = result.indices
        # A router that chooses groups of experts first calls topk for that too, with other sizes.
        if scores.shape[-1] != self._count or own.shape != self._experts.shape:
            return result
        given = self._experts.to(own.dtype)
        indices = torch.where(given == OWN_EXPERTS, own, given)
        return torch.return_types.topk((scores.gather(-1, indices), indices))
