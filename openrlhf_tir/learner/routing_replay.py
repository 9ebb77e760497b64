"""Let a mixture of experts compute each token with the experts that sampled it (routing replay).

Engine and learner compute the same router logits up to rounding. Where two experts are nearly equal, rounding decides,
and the token is computed by another expert: its log-prob then differs by far more than rounding. With
`rollout.routing_replay` the engine returns the experts of each token, and the learner's routers choose those:

    router logits = W h                          the learner's own
    scores        = softmax(logits), sigmoid, ...    what the model makes of them
    experts       = topk(scores, k)              replaced by the given ones
    weights       = scores of these experts      so the gate's weights, and their gradients, are the learner's

The model's own router code runs, with one operation replaced: the `topk` that chooses k of all experts. So what a model
does before and after it (normalised weights, sigmoid scores, a bias of the choice) stays as it is. If a model chooses
groups of experts first, the groups of the given experts are chosen: experts of other groups would have no weight.

A router whose choice is made otherwise is refused when the model is loaded, and a forward pass in which nothing was
replaced is an error: a replay that silently did nothing would look like one that does not help.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..errors import ConfigError
from .packing import OWN_EXPERTS

_LAYER = re.compile(r"\.layers\.(\d+)\.")
_ROUTER = re.compile(r"(router|gate|gating)$", re.IGNORECASE)
"""End of the class names of routers in transformers since version 5."""
_COUNTS = ("num_experts", "n_routed_experts")
"""Attributes that hold the number of experts among which a router chooses."""
_GROUPS = ("num_group", "n_group")
"""Attributes that hold the number of groups of experts."""
_TOPK = (torch.topk, torch.Tensor.topk)


class RoutingReplay:
    """The routers of one model, and the experts that they are to choose in its next forward pass."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Find the model's routers and replace their `forward`.

        Raises:
            ConfigError: The model is no mixture of experts, or has a layer of experts whose choice cannot be replaced.
        """
        if fault := unsupported(model):
            raise ConfigError(fault)
        self._choices = {layer: _Choice(layer, router) for layer, router in find_routers(model).items()}

    def use(self, experts: torch.Tensor | None) -> None:
        """Set the experts of the next forward pass; they stay for layers that are computed again in the backward pass.

        Args:
            experts: [tokens, layers, k] int16, OWN_EXPERTS where the router chooses; None: it chooses all.
        """
        for layer, choice in self._choices.items():
            choice.experts = None if experts is None else experts[:, layer]


def find_routers(model: torch.nn.Module) -> dict[int, torch.nn.Module]:
    """Return the router of each layer that has experts, by the layer's index.

    A router is a module of its own that chooses experts by `topk`, as in most of transformers' models since version 5.
    """
    routers: dict[int, torch.nn.Module] = {}
    for name, module in model.named_modules():
        layer = _LAYER.search(f".{name}.")
        if layer and _ROUTER.search(type(module).__name__) and _calls_topk(module) and _expert_counts(module):
            routers[int(layer.group(1))] = module
    return routers


def unsupported(model: torch.nn.Module) -> str | None:
    """Return an error message if the choice of experts of some layer cannot be replaced; None if all can."""
    routers = find_routers(model)
    remedy = "Set rollout.routing_replay to false."
    kind = type(model).__name__
    if not routers:
        return (
            f"rollout.routing_replay needs a mixture of experts whose routers call topk, and {kind} has none. {remedy}"
        )
    layers = {
        int(layer.group(1))
        for name, module in model.named_modules()
        if type(module).__name__.endswith("Experts") and (layer := _LAYER.search(f".{name}."))
    }
    without = sorted(layers - routers.keys())
    if without:
        return (
            f"rollout.routing_replay: {kind} chooses the experts of the layers {without} otherwise than by a router"
            f" that calls topk. {remedy}"
        )
    return None


def _calls_topk(module: torch.nn.Module) -> bool:
    """Return True if `forward` calls topk, or a method of the router that is named after it."""
    forward = inspect.unwrap(type(module).forward)
    code = getattr(forward, "__code__", None)
    return code is not None and any("topk" in name for name in code.co_names)


def _expert_counts(module: Any) -> set[int]:
    """Return every number of experts among which a router may choose.

    A router's weight may have rows for shared experts too, which are no choice, and ZeRO-3 has partitioned it.
    """
    weight = getattr(module, "weight", None)
    rows = [] if weight is None else [next(iter(getattr(weight, "ds_shape", weight.shape)))]
    owners = (module, getattr(module, "config", None))
    counts = [getattr(owner, name, None) for owner in owners for name in _COUNTS]
    return {count for count in [*rows, *counts] if isinstance(count, int)}


class _Choice:
    """What one router is to choose. Replaces the router's `forward` by one that chooses so."""

    def __init__(self, layer: int, router: Any) -> None:
        self.experts: torch.Tensor | None = None
        """[tokens, k] int16; None: the router chooses."""
        self._layer = layer
        self._counts = _expert_counts(router)
        self._groups = next((getattr(router, name) for name in _GROUPS if getattr(router, name, None)), 1)
        self._forward: Callable[..., Any] = router.forward
        router.forward = self._replayed

    def _replayed(self, *args: Any, **kwargs: Any) -> Any:
        if self.experts is None:
            return self._forward(*args, **kwargs)
        with _GivenExperts(self.experts, self._counts, self._groups) as given:
            result = self._forward(*args, **kwargs)
        if not given.replaced:
            raise ConfigError(
                f"The experts of layer {self._layer} were not replayed: its router chose none of {given.seen} with"
                f" {tuple(self.experts.shape)} given. Set rollout.routing_replay to false."
            )
        return result


class _GivenExperts(TorchFunctionMode):
    """Replaces the choice of experts inside the block."""

    def __init__(self, experts: torch.Tensor, counts: set[int], groups: int) -> None:
        """Begin with the experts [tokens, k] of `counts` experts in all, in `groups` equal groups."""
        super().__init__()
        self._experts = experts
        self._counts = counts
        self._groups = groups
        self.replaced = False
        """True if experts were chosen."""
        self.seen: list[tuple[int, ...]] = []
        """Shapes of everything that topk chose."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func not in _TOPK:
            return func(*args, **options)
        scores = args[0] if args else options.pop("input")
        others = args[1:]
        result = func(scores, *others, **options)
        self.seen.append(tuple(result.indices.shape))
        if scores.dim() != 2:
            return result
        if scores.shape[1] in self._counts and result.indices.shape == self._experts.shape:
            self.replaced = True
            given = self._experts.to(result.indices.dtype)
            indices = torch.where(given == OWN_EXPERTS, result.indices, given)
            return torch.return_types.topk((scores.gather(-1, indices), indices))
        if scores.shape[1] == self._groups > 1:
            return func(self._preferring_groups(scores), *others, **options)
        return result

    def _preferring_groups(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores [tokens, groups] with infinity for each group that has a given expert.

        The engine chose within as many groups, so that all of these are chosen.
        """
        size = max(self._counts) // self._groups
        given = self._experts.to(torch.int64)
        groups = torch.where(given == OWN_EXPERTS, self._groups, given // size)
        wanted = torch.zeros(len(scores), self._groups + 1, dtype=torch.bool, device=scores.device)
        wanted.scatter_(1, groups, True)
        return scores.masked_fill(wanted[:, :-1], float("inf"))
