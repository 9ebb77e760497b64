"""Norms and gated MLPs that keep only their inputs compute what transformers' modules compute."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from openrlhf_tir.learner.lean_layers import make_lean  # noqa: E402

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
}


def decoder(name: str, dtype: torch.dtype) -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **SHAPE)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).train()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, 1.0 if weight.dim() == 1 else 0.0, 0.2)
    return model


def scores_and_gradient(model: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits of some tokens, and the gradient of a function of them in fp32, flat."""
    ids = torch.randint(64, (2, 9), generator=torch.Generator().manual_seed(1))
    logits = model(ids, use_cache=False).logits
    logits.float().square().mean().backward()
    return logits, torch.cat([weight.grad.flatten().float() for weight in model.parameters()])


def distance(gradient: torch.Tensor, exact: torch.Tensor) -> float:
    return float((gradient - exact).norm() / exact.norm())


def kept_bytes(module: torch.nn.Module, *inputs: torch.Tensor) -> int:
    """Return the bytes of the tensors that `module` keeps for its backward pass, besides its weights."""
    weights = {weight.data_ptr() for weight in module.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = module(*inputs)
    assert output.requires_grad
    return sum(size for place, size in kept.items() if place not in weights)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral"])
def test_outputs_have_the_same_bits_and_gradients_are_as_exact_as_before(name):
    """In bf16 the measure is how far a gradient is from that of the same weights in fp32."""
    plain = decoder(name, torch.bfloat16)
    lean = copy.deepcopy(plain)
    make_lean(lean)
    plain_in_fp32 = copy.deepcopy(plain).float()
    lean_in_fp32 = copy.deepcopy(plain_in_fp32)
    make_lean(lean_in_fp32)
    exact = scores_and_gradient(plain_in_fp32)
    in_fp32 = scores_and_gradient(lean_in_fp32)
    assert torch.equal(in_fp32[0], exact[0])
    assert distance(in_fp32[1], exact[1]) <= 1e-6
    before = scores_and_gradient(plain)
    now = scores_and_gradient(lean)
    assert torch.equal(now[0], before[0])
    assert distance(now[1], exact[1]) <= 1.05 * distance(before[1], exact[1])


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral"])
def test_a_norm_keeps_its_input_and_a_number_per_token_and_an_mlp_its_input_gate_and_up(name):
    model = decoder(name, torch.bfloat16)
    make_lean(model)
    layer = model.model.layers[0]
    hidden = torch.randn(1, 10, 32, dtype=torch.bfloat16, requires_grad=True)
    assert kept_bytes(layer.input_layernorm, hidden) == 10 * (2 * 32 + 4)
    assert kept_bytes(layer.mlp, hidden) == 10 * 2 * (32 + 2 * 48)


def test_a_norm_and_an_mlp_of_another_formula_stay_as_they_are():
    """Gemma's norm adds 1 to its weight."""
    model = decoder("gemma3_text", torch.bfloat16)
    make_lean(model)
    layer = model.model.layers[0]
    assert "forward" not in vars(layer.input_layernorm)
    assert "forward" in vars(layer.mlp)


def test_a_frozen_norm_passes_the_gradient_on():
    model = decoder("llama", torch.float32)
    make_lean(model)
    norm = model.model.norm.requires_grad_(False)
    hidden = torch.randn(3, 32, requires_grad=True)
    norm(hidden).sum().backward()
    assert hidden.grad is not None
    assert norm.weight.grad is None
