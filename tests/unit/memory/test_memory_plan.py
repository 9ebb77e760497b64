"""What each GPU, host and disk has to hold: worked by hand for a small decoder, and judged by `openrlhf-tir size`."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest

from openrlhf_tir.cli import main
from openrlhf_tir.config import Config
from openrlhf_tir.config.settings import load
from openrlhf_tir.memory.bounds import HEAD_CHUNK_BYTES
from openrlhf_tir.memory.memory_plan import (
    ENGINE_RESERVE,
    RESERVE,
    Shape,
    memory_plan,
    micro_batch_tokens,
    wants_liger,
)
from tests.unit.memory.test_model_size import QWEN3_30B_A3B, QWEN_7B

GIB = 2**30
SMALL = {
    "hidden_size": 8,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 50,
    "tie_word_embeddings": True,
}
N = 3 * (2 * 8 * 4 * 2 + 2 * 8 * 2 * 2 + 3 * 8 * 16) + 50 * 8
"""Its parameters: per layer q and o, k and v, the MLP; embeddings."""


def model(tmp_path, config) -> str:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


@pytest.fixture
def small(tmp_path):
    return Config(
        actor={
            "model_name_or_path": model(tmp_path, SMALL),
            "num_nodes": 2,
            "num_gpus_per_node": 2,
            "gradient_checkpointing_enable": True,
        },
        vllm={"tensor_parallel_size": 2, "gpu_memory_utilization": 0.5},
        data={"max_len": 100},
        rollout={"max_new_tokens": 50},
        train={"max_tokens_per_gpu": 1000, "micro_batch_size": 10},
        ckpt={"max_num": 2},
    )


def test_each_part_is_what_the_arithmetic_of_the_page_says(small):
    plan = memory_plan(small, 80 * GIB)
    assert plan.parameters == N == 2128
    # bytes per token: two norms, fp32 in and bf16 out; q, k, v, the output twice; the MLP's four
    layer = 2 * (4 + 2) * 8 + 2 * ((3 * 4 + 2 * 2) * 2 + 4 * 16)
    assert plan.learner == {
        "weights": 2 * N // 4,
        "gradients": 4 * N // 4,
        "optimiser": 12 * N // 4,
        "gathered weights": 2 * N,
        "activations": 2 * 1000 * 8 * 3 + 1000 * layer,
        "logits": 2 * HEAD_CHUNK_BYTES,
        "head's gradient": (4 + 2) * 50 * 8,
        "reserve": RESERVE,
    }
    assert plan.engine == {"weights": N, "KV cache": 40 * GIB - N - ENGINE_RESERVE, "reserve": ENGINE_RESERVE}
    assert plan.kv_tokens == (40 * GIB - N - ENGINE_RESERVE) * 2 // (2 * 3 * 2 * 2 * 2), (
        "two GPUs share a token's keys and values"
    )
    assert (plan.push, plan.checkpoints, plan.learner_host) == (2 * 2 * N, 3 * 12 * N, 12 * N // 4)


COPY = 12 * N // 4
"""On a rank's host: what a checkpoint is written from."""


@pytest.mark.parametrize(
    ("change", "part", "of_gpu", "of_host"),
    [
        ({"ds": {"adam_offload": True}}, "optimiser", 0, 3 * N + COPY),
        ({"ds": {"lora": {"rank": 4}}}, "optimiser", 0, 2 * N // 4),
        ({"ds": {"lora": {"rank": 4}}}, "head's gradient", 0, 2 * N // 4),
        ({"ds": {"param_dtype": "fp32"}}, "head's gradient", 4 * 50 * 8, COPY),
        ({"train": {"ema_beta": 0.992}}, "optimiser", 3 * N, N + COPY + N),
        ({"ds": {"grad_accum_dtype": "bf16"}}, "gradients", 2 * N // 4, COPY),
        ({"ds": {"zero_stage": 2}}, "weights", 2 * N, COPY + 2 * N // 4),
        ({"algo": {"advantage": {"estimator": "gae"}}}, "optimiser", 2 * 3 * N, 2 * COPY),
        (
            {"algo": {"advantage": {"estimator": "gae"}}, "ds": {"lora": {"rank": 4}}},
            "optimiser",
            3 * N,
            COPY + 2 * N // 4,
        ),
        ({"algo": {"kl": {"init_coef": 0.1}}}, "reference model", 2 * N // 4, COPY),
        ({"algo": {"kl": {"init_coef": 0.1}}, "ref": {"offload": True}}, "reference model", 0, COPY + 2 * N // 4),
        ({"ckpt": {"max_num": 0}}, "optimiser", 3 * N, 0),
        ({"vllm": {"sync_backend": "delta"}}, "optimiser", 3 * N, COPY + 2 * N),
    ],
)
def test_settings_move_what_they_are_for(small, change, part, of_gpu, of_host):
    plan = memory_plan(Config(**{**small.model_dump(exclude_unset=True), **change}), 80 * GIB)
    assert plan.learner.get(part, 0) == of_gpu and plan.learner_host == of_host


def test_a_critic_is_in_a_checkpoint_as_the_policy_is_and_without_checkpoints_there_is_none(small):
    def of(**change):
        return memory_plan(Config(**{**small.model_dump(exclude_unset=True), **change}), 80 * GIB).checkpoints

    assert (of(algo={"advantage": {"estimator": "gae"}}), of(ckpt={"max_num": 0})) == (2 * 3 * 12 * N, 0)


def test_the_critic_of_an_own_estimator_is_planned_for_as_that_of_gae(small, tmp_path):
    (tmp_path / "own.py").write_text(
        "from openrlhf_tir.algorithms.advantages import Estimator\n"
        "def rewards(inputs): return inputs.trained_G\n"
        "with_critic = Estimator(rewards, whiten=True, critic=True)\n"
        "without = Estimator(rewards, whiten=True)\n"
    )

    def plan(estimator: str):
        algo = {"advantage": {"estimator": estimator}}
        return memory_plan(Config(**{**small.model_dump(exclude_unset=True), "algo": algo}), 80 * GIB)

    own = plan(f"{tmp_path}/own.py:with_critic")
    assert own.learner["optimiser"] == 2 * 3 * N and own.learner_host == 2 * COPY
    assert own.checkpoints == 2 * 3 * 12 * N
    assert own == plan("gae")
    assert plan(f"{tmp_path}/own.py:without") == plan("reinforce_baseline")


def test_ranks_that_share_a_sequence_hold_a_part_of_the_longest(small):
    changes = {"data": {"max_len": 4000}, "ds": {"packing_samples": True, "attn_implementation": "sdpa"}}

    def activations(**ds):
        cfg = Config(**{**small.model_dump(exclude_unset=True), **changes, "ds": {**changes["ds"], **ds}})
        return memory_plan(cfg, 80 * GIB).learner["activations"]

    assert activations() == 4 * activations(ring_attn_size=4) == 2 * activations(ring_attn_size=2)


@pytest.mark.parametrize(
    ("rows", "packed", "max_len", "tokens"),
    [
        (8, False, 100, 800),
        (10, False, 100, 1000),
        (16, False, 100, 1000),
        (1, False, 2000, 2000),
        (1, True, 100, 1000),
    ],
)
def test_a_micro_batch_without_packing_is_at_most_its_rows_of_the_greatest_length(small, rows, packed, max_len, tokens):
    changes = {
        "train": {"max_tokens_per_gpu": 1000, "micro_batch_size": rows},
        "data": {"max_len": max_len},
        "ds": {"packing_samples": packed, "attn_implementation": "sdpa"},
    }
    assert micro_batch_tokens(Config(**{**small.model_dump(exclude_unset=True), **changes})) == tokens


def with_engine(small, **engine_args) -> Config:
    vllm = {"tensor_parallel_size": 2, "gpu_memory_utilization": 0.5, "engine_args": engine_args}
    return Config(**{**small.model_dump(exclude_unset=True), "vllm": vllm})


def test_pipeline_stages_share_an_engines_weights_and_cache(small):
    plan = memory_plan(with_engine(small, pipeline_parallel_size=3), 80 * GIB)
    assert plan.engine["weights"] == math.ceil(2 * N / 6)
    assert plan.kv_tokens == plan.engine["KV cache"] * 2 * 3 // (2 * 3 * 2 * 2 * 2)


@pytest.mark.parametrize(
    ("engine_args", "faults"),
    [
        ({}, 1),
        ({"max_num_batched_tokens": 64}, 1),
        ({"kv_cache_dtype": "fp8"}, 0),
        ({"quantization": "fp8"}, 0),
        ({"cpu_offload_gb": 4}, 0),
    ],
)
def test_an_engine_is_found_too_small_only_where_it_is_known_what_it_holds(small, engine_args, faults):
    cfg = with_engine(small, **engine_args)
    plan = replace(memory_plan(cfg, 80 * GIB), kv_tokens=cfg.data.max_len - 1)
    assert len(plan.faults(80 * GIB)) == faults


def test_engines_of_more_gpus_than_heads_of_keys_hold_some_twice(small):
    plan = memory_plan(
        Config(**{**small.model_dump(exclude_unset=True), "vllm": {"tensor_parallel_size": 4}}), 80 * GIB
    )
    assert plan.kv_tokens == plan.engine["KV cache"] * 2 // (2 * 3 * 2 * 2 * 2)


def test_without_gradient_checkpointing_every_layer_keeps_its_activations(small):
    kept = Config(
        **{
            **small.model_dump(exclude_unset=True),
            "actor": {**small.actor.model_dump(exclude_unset=True), "gradient_checkpointing_enable": False},
        }
    )
    assert memory_plan(kept, 80 * GIB).learner["activations"] == 1000 * 3 * (2 * 6 * 8 + 2 * (16 * 2 + 4 * 16))


def test_the_cache_of_a_7b_engine_holds_what_its_shape_says(tmp_path):
    """57,344 bytes a token in bf16: 2 x 28 layers x 4 heads of keys x 128 x 2."""
    cfg = Config(actor={"model_name_or_path": model(tmp_path, QWEN_7B)})
    plan = memory_plan(cfg, 80 * GIB)
    assert plan.kv_tokens == plan.engine["KV cache"] // 57_344
    assert plan.sequences == plan.kv_tokens / cfg.data.max_len


def test_logits_are_two_chunks_of_the_vocabulary_and_what_is_kept_of_them(tmp_path):
    """2,048 tokens of 152,064 logits are 594 MiB in bf16, 1,188 in float32; 16,000 have 4,640.6 MiB of them in bf16."""

    def plan(top_p=1.0, **ds):
        actor = {"model_name_or_path": model(tmp_path, {**SMALL, "vocab_size": 152_064}), "num_gpus_per_node": 1}
        cfg = Config(actor=actor, train={"max_tokens_per_gpu": 16_000}, ds=ds, rollout={"top_p": top_p})
        return memory_plan(cfg, 6 * GIB)

    assert plan().learner["logits"] == 1188 * 2**20 and "kept logits" not in plan().learner
    assert plan(top_p=0.9).learner["logits"] == 2376 * 2**20
    assert plan(keep_logits_mib=1024).learner["kept logits"] == GIB and not plan(keep_logits_mib=1024).faults(8 * GIB)
    most = plan(keep_logits_mib=100_000)
    assert most.learner["kept logits"] == 2 * 16_000 * 152_064
    assert any(re.search(r"\bkept logits\b.*ds\.keep_logits_mib\b", fault) for fault in most.faults(6 * GIB))


def test_of_a_model_of_experts_only_those_that_a_token_uses_are_active(tmp_path):
    few, all_ = ({**QWEN3_30B_A3B, "num_experts_per_tok": n} for n in (8, 128))
    (tmp_path / "few").mkdir()
    (tmp_path / "all").mkdir()
    plans = [
        memory_plan(Config(actor={"model_name_or_path": model(tmp_path / at, c)}), 80 * GIB)
        for at, c in (("few", few), ("all", all_))
    ]
    assert (
        plans[0].parameters == plans[1].parameters and plans[0].learner["activations"] < plans[1].learner["activations"]
    )


MIXTURE = SMALL | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 4, "n_shared_experts": 1}
"""SMALL with experts of 4 inner values, of which a token meets two and a shared one."""


def test_the_experts_of_a_layer_are_gathered_whole_and_so_is_their_gradient(tmp_path):
    """A layer of 235 billion parameters has 2.4 billion in its experts: more than DeepSpeed's limit of live ones."""

    def learner(**sections):
        cfg = Config(actor={"model_name_or_path": model(tmp_path, LARGE), "num_gpus_per_node": 8}, **sections)
        return memory_plan(cfg, 80 * GIB).learner

    of_layer = 3 * 4096 * 1536 * 128
    assert learner()["gathered weights"] == learner()["experts' gradient"] == 2 * of_layer
    assert "experts' gradient" not in learner(ds={"lora": {"rank": 8}})


LARGE = SMALL | {
    "hidden_size": 4096,
    "num_hidden_layers": 1,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1536,
}


def test_each_expert_of_a_token_keeps_a_copy_of_it_and_an_output(tmp_path):
    """Two experts of 4 inner values and a shared one: gate, activation, up and product of 12, twice two copies of 8."""
    cfg = Config(
        actor={"model_name_or_path": model(tmp_path, MIXTURE), "gradient_checkpointing_enable": False},
        train={"max_tokens_per_gpu": 1000, "micro_batch_size": 10},
        data={"max_len": 100},
        rollout={"max_new_tokens": 50},
    )
    layer = 2 * (4 + 2) * 8 + 2 * ((3 * 4 + 2 * 2) * 2 + 4 * 12 + 2 * 2 * 8)
    assert memory_plan(cfg, 80 * GIB).learner["activations"] == 1000 * 3 * layer


def test_mixtures_whose_experts_have_the_size_of_an_mlp_are_counted_by_their_experts(tmp_path):
    """Mixtral and gpt-oss have no moe_intermediate_size."""
    named = {name: value for name, value in MIXTURE.items() if name != "moe_intermediate_size"} | {
        "intermediate_size": 4
    }
    assert Shape.of(named).inner == Shape.of(MIXTURE).inner == 3 * 4


def test_size_says_what_does_not_fit_and_which_setting_changes_it(tmp_path, capsys):
    argv = ["size", "--recipe", "zerotir_7b", "--actor.model_name_or_path", model(tmp_path, QWEN_7B)]
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert " 7.62 " in out and "ds.adam_offload" not in out
    assert main([*argv, "--gpu-gib", "24"]) == 1
    said = capsys.readouterr().out
    assert re.search(r" 24\.00 GiB,.*\bds\.adam_offload\b", said)
    assert main([*argv, "--gpu-gib", "16", "--ds.adam_offload"]) == 1
    assert re.search(r"\(data\.max_len\).*vllm\.gpu_memory_utilization", capsys.readouterr().out)


def test_size_refuses_a_model_that_it_cannot_read(tmp_path, capsys):
    assert main(["size", "--recipe", "zerotir_7b", "--actor.model_name_or_path", str(tmp_path)]) == 2
    assert f"actor.model_name_or_path = '{tmp_path}'" in capsys.readouterr().err


@pytest.fixture
def shared(small):
    """Two ranks, each with an engine of one GPU."""
    changes = {
        "train": {"max_tokens_per_gpu": 1000, "colocate_all": True},
        "pipeline": {"mode": "sync"},
        "actor": {**small.actor.model_dump(exclude_unset=True), "num_nodes": 1},
        "vllm": {"gpu_memory_utilization": 0.5, "num_engines": 2},
    }
    return Config(**{**small.model_dump(exclude_unset=True), **changes})


def test_on_a_shared_gpu_the_rank_keeps_its_weights_and_the_engine_its_reserve(shared):
    plan = memory_plan(shared, 80 * GIB)
    assert plan.kept == 2 * N // 2 + 2 * N + HEAD_CHUNK_BYTES // 2 + RESERVE, (
        "its share of the weights, and what is gathered for a canary's scores"
    )
    assert plan.asleep == ENGINE_RESERVE
    assert plan.learner_host == 12 * N // 2 + (4 + 12) * N // 2 + 2 * N, (
        "the checkpoint's copy; gradients and optimiser; the engine's weights"
    )
    assert plan.faults(80 * GIB) == []
    apart = memory_plan(
        Config(**{**shared.model_dump(exclude_unset=True), "train": {"max_tokens_per_gpu": 1000}}), 80 * GIB
    )
    assert (apart.kept, apart.asleep, apart.learner_host) == (0, 0, 12 * N // 2)


def test_a_share_that_leaves_the_rank_too_little_is_told_with_the_one_that_fits(shared):
    plan = memory_plan(
        Config(**{**shared.model_dump(exclude_unset=True), "vllm": {"gpu_memory_utilization": 0.97}}), 80 * GIB
    )
    (fault,) = plan.faults(80 * GIB)
    assert re.search(r" 80\.00 GiB.*vllm\.gpu_memory_utilization \w+ 0\.96\b", fault)
    fits = memory_plan(
        Config(**{**shared.model_dump(exclude_unset=True), "vllm": {"gpu_memory_utilization": 0.96}}), 80 * GIB
    )
    assert fits.faults(80 * GIB) == []


def test_a_rank_that_fits_alone_may_not_beside_a_sleeping_engine(shared):
    plan = memory_plan(shared, 80 * GIB)
    assert memory_plan(shared, 0).learner_gpu == plan.learner_gpu
    beside = f" {ENGINE_RESERVE / GIB:.2f} GiB "
    assert sum(beside in fault for fault in plan.faults(plan.learner_gpu + ENGINE_RESERVE - 1)) == 1
    assert not any(beside in fault for fault in plan.faults(plan.learner_gpu + ENGINE_RESERVE))


def test_size_shows_both_turns_of_a_shared_gpu(tmp_path, capsys):
    settings = {
        "train.colocate_all": "true",
        "ref.offload": "true",
        "pipeline.mode": "sync",
        "vllm.num_engines": "8",
        "vllm.tensor_parallel_size": "1",
        "actor.model_name_or_path": model(tmp_path, QWEN_7B),
    }
    argv = ["size", "--recipe", "zerotir_7b", *(f"--{name}={value}" for name, value in settings.items())]
    assert main(argv) == 0
    said = capsys.readouterr().out
    plan = memory_plan(load("zerotir_7b", settings), 80 * GIB)
    for of_turn in (plan.engine_gpu + plan.kept, plan.learner_gpu + plan.asleep):
        assert f" {of_turn / GIB:.2f} GiB" in said
    assert main([*argv, "--vllm.gpu_memory_utilization", "0.95"]) == 1
    assert re.search(r"vllm\.gpu_memory_utilization \w+ 0\.91\b", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("setting", "ring", "installed", "expected"),
    [(None, 1, True, True), (None, 1, False, False), (None, 2, True, False), (True, 1, False, True)],
)
def test_unset_liger_is_used_where_it_is_installed_and_a_sequence_is_on_one_rank(setting, ring, installed, expected):
    packed = {"packing_samples": True, "attn_implementation": "sdpa"}
    cfg = Config(ds={"use_liger_kernel": setting, "ring_attn_size": ring, **packed})
    assert wants_liger(cfg, installed) is expected


def test_a_rank_and_an_engine_that_share_a_gpu_must_fit_on_it_together(tmp_path):
    """The engine's part is its weights, 2 GiB of cache as set, and its reserve."""
    settings = {
        "actor": {"model_name_or_path": model(tmp_path, SMALL), "num_gpus_per_node": 1},
        "train": {"share_gpus": True},
        "vllm": {"num_engines": 1, "kv_cache_mib": 2048},
    }
    plan = memory_plan(Config(**settings), 80 * GIB)
    assert plan.engine["KV cache"] == 2 * GIB
    weight_bytes = plan.parameters * 2
    assert plan.learner["push buffers"] == weight_bytes < GIB, "what the engine maps of the learner"
    (tmp_path / "large").mkdir()
    large = settings["actor"] | {"model_name_or_path": model(tmp_path / "large", QWEN_7B)}
    assert memory_plan(Config(**settings | {"actor": large}), 80 * GIB).learner["push buffers"] == 2 * 512 * 2**20
    by_file = memory_plan(Config(**settings | {"vllm": settings["vllm"] | {"sync_backend": "file"}}), 80 * GIB)
    assert plan.learner_gpu - by_file.learner_gpu == weight_bytes
    needed = plan.learner_gpu + plan.engine_gpu
    assert plan.faults(needed) == []
    (fault,) = plan.faults(needed - 1)
    assert "vllm.kv_cache_mib" in fault
