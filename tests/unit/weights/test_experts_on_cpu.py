"""What is wrapped around vLLM's mixtures on a CPU, on its own classes without an engine."""

from __future__ import annotations

import types

import pytest
import torch

pytest.importorskip("vllm")

from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.platforms import current_platform

from openrlhf_tir.weights import experts_on_cpu

pytestmark = [
    pytest.mark.slow,  # importing vLLM's layers
    pytest.mark.skipif(not current_platform.is_cpu(), reason="vLLM runs on another platform"),
]


def test_the_kernel_tells_the_capture_which_experts_it_chose():
    experts_on_cpu.install()
    experts_on_cpu.install()  # a second time, as where two engines are in one process
    kernel = CPUUnquantizedExperts.__new__(CPUUnquantizedExperts)
    kernel.moe_config = types.SimpleNamespace(experts_per_token=2)
    kernel.use_grouped_topk, kernel.renormalize, kernel.scoring_func = False, True, "softmax"
    kernel.custom_routing_function = None
    assert kernel.supports_routing_replay_capture()
    captured: list[torch.Tensor] = []
    kernel.set_capture_fn(captured.append)
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0], [5.0, 0.0, 0.0, 4.0]])
    weights, ids = kernel._select_experts(torch.zeros(2, 8), logits, None, None, None, None)
    assert len(captured) == 1 and torch.equal(captured[0], ids)
    assert [sorted(row) for row in ids.tolist()] == [[1, 3], [0, 3]]
    assert weights.sum(-1).tolist() == pytest.approx([1.0, 1.0])


def test_weights_are_packed_when_they_are_loaded_again_and_once_when_they_are_loaded_first():
    events: list[str] = []
    kernel = types.SimpleNamespace(process_weights_after_loading=lambda layer: events.append("pack"))
    method = types.SimpleNamespace(moe_kernel=None)

    def set_up(of, layer, w13, w2) -> None:
        """vLLM's own: makes and packs at first, only copies later."""
        events.append("copy")
        if of.moe_kernel is None:
            of.moe_kernel = types.SimpleNamespace(fused_experts=kernel)
            kernel.process_weights_after_loading(layer)

    wrapped = experts_on_cpu._packed(set_up)
    weight = torch.zeros(1)
    wrapped(method, None, weight, weight)
    assert events == ["copy", "pack"]
    wrapped(method, None, weight, weight)
    assert events == ["copy", "pack", "copy", "pack"]
