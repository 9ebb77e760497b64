"""Make vLLM's mixtures of experts on a CPU load pushed weights rightly and report the experts of each token.

Runs in vLLM's worker. vLLM 0.29 has two gaps on CPUs only, both closed here by wrapping its own classes:

- *Pushed weights.* The CPU kernel reads weights in a packed order. `UnquantizedFusedMoEMethod` packs them when a model
  is loaded and not when it is loaded again, so that after a push the kernel would read plain weights as packed ones.
- *Routed experts.* vLLM's capture (`enable_return_routed_experts`) refuses the kernel, which chooses the experts inside
  its own `apply`. Reporting the choice is one line there; everything after it is vLLM's, as on a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def install() -> None:
    """Wrap vLLM's classes, once per process. Does nothing where the platform is not a CPU."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    if getattr(CPUUnquantizedExperts, "reports_experts", False):
        return
    CPUUnquantizedExperts.reports_experts = True
    CPUUnquantizedExperts.supports_routing_replay_capture = lambda self: True
    CPUUnquantizedExperts.set_capture_fn = _set_capture_fn
    CPUUnquantizedExperts._select_experts = _reported(CPUUnquantizedExperts._select_experts)
    UnquantizedFusedMoEMethod._setup_kernel = _packed(UnquantizedFusedMoEMethod._setup_kernel)


def _set_capture_fn(experts: Any, capture: Callable[[torch.Tensor], None] | None) -> None:
    experts.routing_replay_capture_fn = capture


def _reported(select: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the choice of experts so that the capture gets it."""

    @functools.wraps(select)
    def chosen(experts: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        weights, ids = select(experts, *args, **kwargs)
        if experts.routing_replay_capture_fn is not None:
            experts.routing_replay_capture_fn(ids)
        return weights, ids

    return chosen


def _packed(set_up: Callable[..., None]) -> Callable[..., None]:
    """Wrap the processing of loaded weights so that those of a later load are packed too."""

    @functools.wraps(set_up)
    def processed(method: Any, layer: Any, w13: torch.Tensor, w2: torch.Tensor) -> None:
        is_push = method.moe_kernel is not None
        set_up(method, layer, w13, w2)
        if is_push:
            method.moe_kernel.fused_experts.process_weights_after_loading(layer)

    return processed
