"""Preflight of what the learner is asked to do: sequences of full length fit into a forward pass, LoRA finds its
layers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from openrlhf_tir.cli.preflight import check
from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError

from .runs import CPU, refused


def test_sequences_that_no_forward_pass_has_room_for_are_refused_with_the_number_to_raise(ready):
    said = refused(ready, data__max_len=2000, rollout__max_new_tokens=1000, train__max_tokens_per_gpu=1999)
    assert re.search(r"train\.max_tokens_per_gpu = 1999\. .*train\.max_tokens_per_gpu .* 2000,", said)
    said = refused(ready, data__max_len=2000, rollout__max_new_tokens=1000, rollout__max_tokens_per_gpu=1000)
    assert re.search(r"rollout\.max_tokens_per_gpu = 1000\. .*rollout\.max_tokens_per_gpu .* 2000,", said)


def test_ranks_that_share_a_sequence_have_room_for_it_together(ready):
    shared = {
        "ds__ring_attn_size": 2,
        "ds__packing_samples": True,
        "actor__num_gpus_per_node": 2,
        "data__max_len": 2001,
        "rollout__max_new_tokens": 1000,
    }
    said = refused(ready, **shared, train__max_tokens_per_gpu=1000)
    assert re.search(r"ds\.ring_attn_size = 1000 \* 2 = 2000\. .*train\.max_tokens_per_gpu .* 1001,", said)
    said = refused(ready, **shared, rollout__max_tokens_per_gpu=1000)
    assert re.search(r"max_tokens_per_gpu \* ds\.ring_attn_size = 1000 \* 2 = 2000\. .*rollout\.\S+ .* 1001,", said)
    fits = {k.replace("__", "."): v for k, v in shared.items()} | {"train.max_tokens_per_gpu": 1001}
    assert check(load(None, {**ready, **fits}), machine=CPU)


def test_a_deepspeed_that_corrupts_weights_on_cpus_is_refused_where_ranks_share_them(ready):
    """What `pip install openrlhf` brings."""
    old = replace(CPU, deepspeed=(0, 19, 6))
    with pytest.raises(ConfigError) as refusal:
        check(load(None, {**ready, "actor.num_gpus_per_node": 2}), machine=old)
    assert [problem.code for problem in refusal.value.problems] == ["not_installed"]
    assert check(load(None, {**ready, "actor.num_gpus_per_node": 1}), machine=old)


LAYERS = ("model.embed_tokens", "model.layers.0.input_layernorm", "model.layers.0.self_attn.q_proj", "lm_head")


def weights_of(model, layers) -> None:
    save_file({f"{name}.weight": np.zeros((2, 2), np.float32) for name in layers}, model / "model.safetensors")


def test_targets_of_lora_that_no_layer_has_are_refused_before_the_model_is_loaded(ready, tmp_path):
    weights_of(tmp_path / "model", LAYERS)
    lora = {"ds.lora.rank": 4, "ds.lora.target_modules": ["q_proj", "k_prj"]}
    said = refused(ready, **{k.replace(".", "__"): v for k, v in lora.items()})
    assert re.search(r"ds\.lora\.target_modules .*'k_prj', .*: q_proj\.", said)
    assert check(load(None, {**ready, **lora, "ds.lora.target_modules": ["q_proj"]}), machine=CPU)


def test_targets_in_a_mixture_of_experts_are_left_to_the_model_itself(ready, tmp_path):
    """transformers joins the experts of a file into layers of other names."""
    weights_of(tmp_path / "model", [*LAYERS, "model.layers.0.mlp.experts.0.up_proj"])
    lora = {"ds.lora.rank": 4, "ds.lora.target_modules": ["gate_up_proj"]}
    assert check(load(None, {**ready, **lora}), machine=CPU)


def test_sequences_longer_than_the_model_has_positions_for_are_refused_before_vllm_does(ready):
    """vLLM says so when the engine starts, minutes later."""
    config = Path(ready["actor.model_name_or_path"]) / "config.json"
    facts = json.loads(config.read_text()) | {"max_position_embeddings": 4096}
    config.write_text(json.dumps(facts))
    said = refused(ready, data__max_len=5000, rollout__max_new_tokens=1000)
    assert re.search(r"data\.max_len = 5000 .* 4096 .*\(max_position_embeddings\)", said)
    fits = {"data.max_len": 4096, "rollout.max_new_tokens": 1000}
    check(load(None, {**ready, **fits}), machine=CPU)
    config.write_text(json.dumps(facts | {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}))
    check(load(None, {**ready, **fits, "data.max_len": 5000}), machine=CPU)


def test_an_attention_that_transformers_does_not_know_is_refused(ready):
    said = refused(ready, ds__attn_implementation="flash_atention_2")
    assert re.search(r"ds\.attn_implementation 'flash_atention_2'\. .*: eager, flash_attention_2", said)
