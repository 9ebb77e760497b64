"""The toy base model: the same weights for the same seed, in a directory that plain transformers loads."""

from __future__ import annotations

import torch

from miniatures.toy.model import build_model, save_model


def weights(model) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_the_seed_decides_the_weights():
    assert torch.equal(weights(build_model(1)), weights(build_model(1)))
    assert not torch.equal(weights(build_model(1)), weights(build_model(2)))


def test_building_leaves_the_global_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    build_model(1)
    assert torch.equal(torch.rand(1), expected)


def test_a_saved_model_loads_in_fp32_with_tied_embeddings(tmp_path):
    from transformers import AutoModelForCausalLM

    save_model(tmp_path, seed=4)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.dtype == torch.float32
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert sum(p.numel() for p in model.parameters()) == 167_040
    assert torch.equal(weights(model), weights(build_model(4)))
