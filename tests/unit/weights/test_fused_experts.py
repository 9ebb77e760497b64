"""The read-back of a mixture's experts, on a layer with vLLM's own kernel format, without an engine."""

from __future__ import annotations

import types

import pytest
import torch

pytest.importorskip("vllm")

from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

from openrlhf_tir.weights import fused_experts
from openrlhf_tir.weights.readback import ReadBack

pytestmark = pytest.mark.slow  # importing vLLM's layers

EXPERTS, INNER, HIDDEN = 4, 64, 32
PREFIX = "layers.0.mlp.experts"


class Model(torch.nn.Module):
    """One layer whose experts lie where vLLM has them: under the module that runs them."""

    def __init__(self, experts: torch.nn.Module) -> None:
        super().__init__()
        self.config = types.SimpleNamespace(model_type="qwen3")
        runner = torch.nn.Module()
        runner.routed_experts = experts
        block = torch.nn.Module()
        block.mlp = torch.nn.Module()
        block.mlp.experts = runner
        self.layers = torch.nn.ModuleList([block])


def layer_of(
    w13: torch.Tensor, w2: torch.Tensor, *, tp_size: int = 1, tp_rank: int = 0, isa: str | None = None
) -> RoutedExperts:
    """A layer of one rank that holds these weights, packed for a CPU kernel if `isa` is given."""
    layer = RoutedExperts.__new__(RoutedExperts)
    torch.nn.Module.__init__(layer)
    layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name, layer.ckpt_down_proj_name = "gate_proj", "up_proj", "down_proj"
    layer.is_fused_checkpoint_transposed = False
    layer.global_num_experts = layer.local_num_experts = EXPERTS
    layer.moe_config = types.SimpleNamespace(
        intermediate_size=INNER,
        tp_size=tp_size,
        tp_rank=tp_rank,
        moe_parallel_config=types.SimpleNamespace(use_ep=False),
    )
    method = UnquantizedFusedMoEMethod.__new__(UnquantizedFusedMoEMethod)
    torch.nn.Module.__init__(method)
    kernel = types.SimpleNamespace(isa=isa, _use_zentorch=False)
    method.moe_kernel = types.SimpleNamespace(fused_experts=kernel)
    layer.quant_method = method
    if isa is not None:
        from vllm._custom_ops import cpu_prepack_moe_weight

        w13, w2 = (cpu_prepack_moe_weight(weight.contiguous(), isa) for weight in (w13, w2))
    layer.w13_weight = torch.nn.Parameter(w13, requires_grad=False)
    layer.w2_weight = torch.nn.Parameter(w2, requires_grad=False)
    return layer


def weights(seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    w13 = torch.randn(EXPERTS, 2 * INNER, HIDDEN, generator=generator).to(dtype)
    return w13, torch.randn(EXPERTS, HIDDEN, INNER, generator=generator).to(dtype)


def as_checkpoint(w13: torch.Tensor, w2: torch.Tensor) -> dict[str, torch.Tensor]:
    """Three matrices for each expert, as a Hugging Face file has them."""
    tensors = {}
    for expert in range(EXPERTS):
        tensors[f"{PREFIX}.{expert}.gate_proj.weight"] = w13[expert, :INNER].clone()
        tensors[f"{PREFIX}.{expert}.up_proj.weight"] = w13[expert, INNER:].clone()
        tensors[f"{PREFIX}.{expert}.down_proj.weight"] = w2[expert].clone()
    return tensors


def as_learner(w13: torch.Tensor, w2: torch.Tensor) -> dict[str, torch.Tensor]:
    """Two tensors for all experts, as transformers has them."""
    return {f"{PREFIX}.gate_up_proj": w13.clone(), f"{PREFIX}.down_proj": w2.clone()}


FORMS = pytest.mark.parametrize("form", [as_checkpoint, as_learner])


@FORMS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("isa", [None, "vec"])
def test_experts_that_are_held_as_sent_are_proved_in_either_form(form, dtype, isa):
    held = weights(dtype=dtype)
    readback = ReadBack(Model(layer_of(*held, isa=isa)))
    readback.check_itself(None)
    report = readback.compare(form(*held).items())
    assert (report.differing, report.unread, report.missing) == ((), (), ())
    assert report.nbytes == sum(weight.nbytes for weight in held)


@FORMS
@pytest.mark.parametrize("isa", [None, "vec"])
def test_one_changed_number_of_one_expert_is_found_and_named(form, isa):
    held = weights()
    sent = form(*held)
    name = next(name for name in sent if "gate" in name)
    sent[name].view(-1)[7] += 1
    readback = ReadBack(Model(layer_of(*held, isa=isa)))
    readback.check_itself(None)
    assert readback.compare(sent.items()).differing == (name,)


def test_plain_weights_in_the_place_of_packed_ones_are_found():
    """What vLLM 0.29 leaves on a CPU after a push: the kernel reads them in its packed order."""
    held = weights()
    layer = layer_of(*held)
    layer.quant_method.moe_kernel.fused_experts.isa = "vec"
    readback = ReadBack(Model(layer))
    readback.check_itself(None)
    assert len(readback.compare(as_learner(*held).items()).differing) == 2


@FORMS
def test_a_tensor_parallel_rank_is_compared_with_its_part(form):
    """Rank 1 of 2 has the second half of gate's and of up's rows, and of down's columns."""
    w13, w2 = weights()
    half = INNER // 2
    mine = torch.cat([w13[:, half:INNER], w13[:, INNER + half :]], dim=1), w2[:, :, half:]
    readback = ReadBack(Model(layer_of(*mine, tp_size=2, tp_rank=1)))
    readback.check_itself(None)
    report = readback.compare(form(w13, w2).items())
    assert (report.differing, report.unread) == ((), ())
    other = ReadBack(Model(layer_of(*mine, tp_size=2, tp_rank=0)))
    other.check_itself(None)
    assert other.compare(form(w13, w2).items()).differing


def test_experts_that_were_loaded_from_disk_by_matrices_are_trusted_when_they_arrive_as_the_learner_has_them():
    held = weights()
    readback = ReadBack(Model(layer_of(*held)))
    assert readback.check_itself(as_checkpoint(*held).items()) == ()
    assert readback.compare(as_learner(*held).items()).unread == ()
    assert len(readback.compare(as_learner(*weights(seed=1)).items()).differing) == 2


def test_a_layout_that_the_read_back_does_not_know_is_left_to_the_log_probs():
    """FlashInfer's kernels have up before gate: nothing of w13 is found where it was loaded, so it is never judged."""
    w13, w2 = weights()
    readback = ReadBack(Model(layer_of(torch.cat([w13[:, INNER:], w13[:, :INNER]], dim=1), w2)))
    unread = readback.check_itself(as_checkpoint(w13, w2).items())
    assert len(unread) == 2 * EXPERTS and all("gate" in name or "up" in name for name in unread)
    report = readback.compare(as_learner(w13, w2).items())
    assert (report.differing, report.unread) == ((), (f"{PREFIX}.gate_up_proj",))
    assert readback.compare(as_learner(w13, w2 + 1).items()).differing == (f"{PREFIX}.down_proj",)


def test_a_layer_that_was_sent_only_some_of_its_experts_is_missing():
    held = weights()
    readback = ReadBack(Model(layer_of(*held)))
    readback.check_itself(None)
    sent = as_checkpoint(*held)
    del sent[f"{PREFIX}.2.down_proj.weight"]
    assert readback.compare(sent.items()).missing == (f"{PREFIX}.routed_experts",)


def test_experts_of_other_ranks_are_not_judged_here():
    held = weights()
    layer = layer_of(*held)
    layer.moe_config.moe_parallel_config.use_ep = True
    readback = ReadBack(Model(layer))
    readback.check_itself(None)
    report = readback.compare(as_learner(*weights(seed=1)).items())
    assert len(report.unread) == 2 and report.differing == ()


def test_the_order_of_a_packed_matrix_is_found_for_matrices_of_more_numbers_than_the_dtype_counts():
    """bf16 counts exactly to 256, a matrix of 64 x 96 has 6,144 numbers."""
    order = fused_experts._packed_order("vec", 64, 96, torch.bfloat16)
    assert sorted(order.tolist()) == list(range(64 * 96))
