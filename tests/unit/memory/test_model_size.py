"""How many parameters a model has is known before it is loaded, from its files or config.json, or from the hub."""

from __future__ import annotations

import json
import math

import httpx
import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.memory import model_size
from openrlhf_tir.memory.model_size import (
    active_parameters,
    attention_parity,
    checkpoint_bytes,
    of_config,
    parameters,
    push_bytes,
)

QWEN_7B = {
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}
QWEN_05B = {
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
QWEN3_30B_A3B = {
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("config", "published"), [(QWEN_7B, 7_615_616_512), (QWEN_05B, 494_032_768), (QWEN3_30B_A3B, 30_532_122_624)]
)
def test_a_config_gives_what_was_published_of_the_model_within_a_thousandth(config, published):
    """The model cards' safetensors totals of Qwen2.5-7B, Qwen2.5-0.5B and Qwen3-30B-A3B."""
    assert of_config(config) == pytest.approx(published, rel=1e-3)


def decoder(hidden: int, layers: int, heads: int, keys: int, vocabulary: int, **more: object) -> dict:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "vocab_size": vocabulary}
    return sizes | {"num_key_value_heads": keys} | more


DEEPSEEK_V3 = decoder(
    7168, 61, 128, 128, 129_280, intermediate_size=18_432, moe_intermediate_size=2048, n_routed_experts=256,
    num_experts_per_tok=8, n_shared_experts=1, first_k_dense_replace=3, moe_layer_freq=1, q_lora_rank=1536,
    kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
)  # fmt: skip
DEEPSEEK_V2_LITE = decoder(
    2048, 27, 16, 16, 102_400, intermediate_size=10_944, moe_intermediate_size=1408, n_routed_experts=64,
    num_experts_per_tok=6, n_shared_experts=2, first_k_dense_replace=1, q_lora_rank=None,
    kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
)  # fmt: skip
MIXTRAL = decoder(4096, 32, 32, 8, 32_000, intermediate_size=14_336, num_local_experts=8, num_experts_per_tok=2)
QWEN15_MOE = decoder(
    2048, 24, 16, 16, 151_936, intermediate_size=5632, moe_intermediate_size=1408, num_experts=60,
    num_experts_per_tok=4, shared_expert_intermediate_size=5632, decoder_sparse_step=1, mlp_only_layers=[],
)  # fmt: skip
GPT_OSS = decoder(
    2880, 24, 64, 8, 201_088, head_dim=64, intermediate_size=2880, num_local_experts=32, num_experts_per_tok=4
)
MAVERICK = decoder(
    5120, 48, 40, 8, 202_048, head_dim=128, intermediate_size=8192, intermediate_size_mlp=16_384,
    num_local_experts=128, num_experts_per_tok=1, interleave_moe_layer_step=2,
)  # fmt: skip
ERNIE = decoder(
    2560, 28, 20, 4, 103_424, tie_word_embeddings=True, intermediate_size=12_288, moe_intermediate_size=1536,
    moe_num_experts=64, moe_k=6, moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_interval=1,
)  # fmt: skip


@pytest.mark.parametrize(
    ("config", "billions", "active"),
    [
        (DEEPSEEK_V3, 671.0, 37 - 0.93),
        (DEEPSEEK_V2_LITE, 15.7, 2.66 - 0.21),
        (MIXTRAL, 46.7, 12.9 - 0.13),
        (QWEN15_MOE, 14.3, 2.7 - 0.31),
        (GPT_OSS, 20.9, 3.61),
        (MAVERICK, 400.0, 17 - 1.03),
        (ERNIE, 21.8, 3.35),
        ({**QWEN3_30B_A3B, "num_experts_per_tok": 8}, 30.5, 3.3 - 0.31),
    ],
)
def test_a_mixture_has_the_parameters_that_were_published(config, billions, active):
    """Layers without experts, shared experts and latent attention differ by family, and so do the names.

    Of the published active parameters the table of the input's embeddings is taken off, where the head has its own and
    the publisher counts it. ERNIE's are by hand: 28 x 14.4 M of attention, 27 x 94.5 M of experts, 94.4 M of the first
    layer, 264.8 M of the head.
    """
    assert of_config(config) / 1e9 == pytest.approx(billions, rel=5e-3)
    assert active_parameters(config) / 1e9 == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize(
    ("names", "layers"),
    [
        ({"mlp_only_layers": [0, 5]}, 46),
        ({"decoder_sparse_step": 2}, 24),
        ({"moe_layer_freq": [0] * 8 + [1] * 40}, 40),
        ({"mlp_layer_types": ["dense"] + ["sparse"] * 47}, 47),
        ({"moe_layers": [1, 3]}, 2),
    ],
)
def test_layers_without_experts_have_an_mlp(names, layers):
    whole = of_config(QWEN3_30B_A3B)
    expert_layer = 3 * 2048 * 768 * 128 + 2048 * 128
    dense_layer = 3 * 2048 * 6144
    assert of_config({**QWEN3_30B_A3B, **names}) == whole - (48 - layers) * (expert_layer - dense_layer)


def test_a_config_that_does_not_say_enough_gives_nothing():
    assert of_config({"hidden_size": 128, "num_attention_heads": 4}) is None
    assert of_config({**QWEN_7B, "num_attention_heads": 0}) is None
    assert of_config({**QWEN_7B, "vocab_size": "many"}) is None


@pytest.mark.parametrize(
    ("config", "active"), [(QWEN_7B, 7.07e9), (QWEN_05B, 0.494e9), (QWEN3_30B_A3B | {"num_experts_per_tok": 8}, 3.03e9)]
)
def test_attention_costs_as_much_as_the_matrices_that_a_token_meets_at_parity(config, active, tmp_path):
    """Operations by hand: 2 P L of the matrices, 2 layers heads d L^2 of causal attention. An untied model's input
    embeddings are no matrix product."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    length = attention_parity(str(tmp_path))
    width = config["num_attention_heads"] * config.get(
        "head_dim", config["hidden_size"] // config["num_attention_heads"]
    )
    assert 2 * active * length == pytest.approx(2 * config["num_hidden_layers"] * width * length**2, rel=0.02)
    assert attention_parity(str(tmp_path / "no_such_model")) == math.inf


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub's cache with the config of org/model in it, whose weights were not loaded yet."""
    snapshot = tmp_path / "models--org--model/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(QWEN_7B))
    (tmp_path / "models--org--model/refs").mkdir()
    (tmp_path / "models--org--model/refs/main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    model_size._on_hub.cache_clear()
    yield tmp_path
    model_size._on_hub.cache_clear()


def test_a_name_on_the_hub_has_a_size_before_its_weights_are_there(hub):
    cfg = Config(actor={"model_name_or_path": "org/model"}, ds={"param_dtype": "bf16"})
    assert push_bytes(cfg) == pytest.approx(2 * 7_615_616_512, rel=1e-3)
    assert checkpoint_bytes(cfg) == pytest.approx(12 * 7_615_616_512, rel=1e-3)


def test_a_push_is_as_large_as_the_learners_dtype_makes_it_whatever_the_files_have(hub):
    cfg = Config(actor={"model_name_or_path": "org/model"}, ds={"param_dtype": "fp32"})
    assert push_bytes(cfg) == pytest.approx(4 * 7_615_616_512, rel=1e-3)


def test_a_name_that_nobody_knows_has_none(hub):
    assert push_bytes(Config(actor={"model_name_or_path": "org/nothing"})) is None
    assert checkpoint_bytes(Config(actor={"model_name_or_path": "org/nothing"})) == 0


def test_files_of_which_some_are_missing_are_not_counted_as_the_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN_7B))
    header = json.dumps({"a": {"dtype": "F32", "shape": [3, 5], "data_offsets": [0, 60]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(60))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}))
    assert parameters(str(tmp_path)) == of_config(QWEN_7B)
    index.write_text(json.dumps({"weight_map": {"a": "a.safetensors"}}))
    assert parameters(str(tmp_path)) == 15


def test_a_hub_that_is_away_is_asked_once(hub, monkeypatch):
    """huggingface_hub's download asks for half a minute, and every check of every recipe would wait for it."""
    asked = []

    def refuse(self, *args, **kwargs):
        asked.append(args)
        raise httpx.ConnectError("no network")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("httpx.HTTPTransport.handle_request", refuse)
    assert parameters("org/nothing") is None and parameters("org/nothing") is None
    assert len(asked) == 1


@pytest.mark.parametrize(
    "damage",
    [
        {"hidden_size": float("inf")},
        {"num_attention_heads": 0},
        {"vocab_size": None},
        {"num_hidden_layers": float("nan")},
    ],
)
def test_a_damaged_config_has_no_size(damage):
    assert of_config({k: v for k, v in QWEN_7B.items() if k != "head_dim"} | damage) is None
