"""A mixture's tensors get the names and shapes of its checkpoint, one tensor at a time."""

from __future__ import annotations

import pytest
import torch

from openrlhf_tir.weights.checkpoint_names import CheckpointNames

SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "moe_intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts_per_tok": 2,
}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}


def model_of(model_type: str, **more: object) -> torch.nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **SIZES | more))


def test_mixtrals_experts_are_three_matrices_each_in_another_module():
    model = model_of("mixtral", num_local_experts=4)
    own = model.state_dict()
    joined = own["model.layers.1.mlp.experts.gate_up_proj"]
    converted = dict(CheckpointNames.of_config(model.config)(own.items()))
    prefix = "model.layers.1.block_sparse_moe"
    assert torch.equal(converted[f"{prefix}.experts.3.w1.weight"], joined[3, :24])
    assert torch.equal(converted[f"{prefix}.experts.3.w3.weight"], joined[3, 24:])
    assert torch.equal(converted[f"{prefix}.experts.2.w2.weight"], own["model.layers.1.mlp.experts.down_proj"][2])
    assert torch.equal(converted[f"{prefix}.gate.weight"], own["model.layers.1.mlp.gate.weight"])
    assert not any(".mlp." in name for name in converted)
    assert torch.equal(converted["model.norm.weight"], own["model.norm.weight"])


@pytest.mark.parametrize(
    ("model_type", "more"),
    [
        ("mixtral", {"num_local_experts": 4}),
        ("olmoe", {"num_experts": 4}),
        ("deepseek_v3", {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, **LATENT}),
        ("glm4_moe", {"n_routed_experts": 4, "first_k_dense_replace": 1}),
        ("gpt_oss", {"num_local_experts": 4}),
    ],
)
def test_one_tensor_at_a_time_gives_what_transformers_saves(model_type, more, tmp_path):
    from safetensors.torch import load_file

    model = model_of(model_type, **more)
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    names = CheckpointNames.of_config(model.config)
    converted: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        converted |= dict(names([(name, tensor)]))
    assert converted.keys() == saved.keys()
    assert all(torch.equal(converted[name], saved[name]) for name in saved)


def test_a_dense_model_and_one_whose_loader_takes_joined_experts_keep_the_learners_tensors(tmp_path):
    for model_type, more in (("qwen2", {}), ("qwen3_moe", {"num_experts": 4})):
        model = model_of(model_type, **more)
        model.config.save_pretrained(tmp_path)
        state = model.state_dict()
        assert dict(CheckpointNames.of(str(tmp_path))(state.items())).keys() == state.keys()


def test_a_model_that_transformers_does_not_know_keeps_its_names(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "no_such_model", "num_experts": 4}')
    tensors = [("experts.gate_up_proj", torch.zeros(2, 4, 2))]
    assert list(CheckpointNames.of(str(tmp_path))(tensors)) == tensors
