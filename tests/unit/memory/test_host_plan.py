"""What each process of a run holds of a node's host memory, worked by hand for a small decoder, and what is refused."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

import pytest

from benchmarks.learner.memory import SMOLLM2
from openrlhf_tir.cli import main
from openrlhf_tir.cli.checks.host import check_memory
from openrlhf_tir.cli.configuration import config_of
from openrlhf_tir.config import Config
from openrlhf_tir.config.flags import add_config_flags
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.memory import host_plan as plans
from openrlhf_tir.memory.host_plan import (
    BF16_REST,
    CONTROLLER,
    ENGINE_PROCESSES,
    ENV_WORKER,
    LEARNER_PROCESS,
    PASS_SLACK,
    PREFILL_COPIES,
    STEP_LOGITS,
    host_plan,
)
from tests.unit.cli.preflight.runs import CPU
from tests.unit.memory.test_memory_plan import MIXTURE, SMALL, N, model

GIB = 2**30


def small(tmp_path, **sections) -> Config:
    base = {
        "actor": {"model_name_or_path": model(tmp_path, SMALL), "num_gpus_per_node": 1},
        "data": {"max_len": 100},
        "rollout": {"max_new_tokens": 50},
        "train": {"max_tokens_per_gpu": 1000, "micro_batch_size": 10},
        "env": {"url": "http://10.0.0.1:1"},
    }
    return Config(**{name: {**base.get(name, {}), **sections.get(name, {})} for name in base | sections})


def test_a_rank_without_a_gpu_holds_all_of_it_in_host_memory(tmp_path):
    plan = host_plan(small(tmp_path), gpus=False)
    layer = 2 * (4 * 8 + (3 * 4 + 2 * 2) * 2 + 2 * 16)
    logits, head = 2 * 4 * 1000 * 50, (4 + 2) * 50 * 8
    assert plan.learner == {
        "process": LEARNER_PROCESS,
        "weights": 2 * N,
        "gradients": 4 * N,
        "optimiser": 12 * N,
        "activations": 3 * 1000 * layer,
        "logits": logits,
        "head's gradient": head,
        "gradients' bucket": 2 << 23,
        "slack of a pass": int(PASS_SLACK * (3 * 1000 * layer + logits + head)),
    }
    assert plan.checkpoint == 0, "it is written from the states themselves"
    assert plan.engine == {
        "processes": ENGINE_PROCESSES,
        "weights": 2 * N,
        "packed embedding and head": 2 * 2 * 50 * 8,
        "KV cache": 256 << 20,
        "rest in bf16": BF16_REST,
        "largest step": PREFILL_COPIES * 4096 * 2 * (3 * 16 + (4 + 2 * 2) * 2 + 4 * 8),
    }
    assert (plan.ranks, plan.engines, plan.others) == (1, 1, CONTROLLER), "the environment's server is elsewhere"
    assert plan.total == plan.rank_bytes + plan.engine_bytes + 2 * 2 * N + CONTROLLER


def test_an_engine_of_several_workers_is_planned_with_all_of_their_processes(tmp_path):
    """Weights are shared; interpreter, KV cache and step are each worker's own."""
    cfg = small(tmp_path, vllm={"tensor_parallel_size": 2, "kv_cache_mib": 64})
    one = host_plan(small(tmp_path, vllm={"kv_cache_mib": 64}), gpus=False).engine
    two = host_plan(cfg, gpus=False).engine
    assert {part: two[part] - n for part, n in one.items()} == {
        "processes": 0,
        "weights": 0,
        "packed embedding and head": 0,
        "KV cache": 64 << 20,
        "rest in bf16": BF16_REST,
        "largest step": one["largest step"],
    }
    assert two["workers"] == 2 * plans.ENGINE_WORKER
    of_four = small(tmp_path, vllm={"tensor_parallel_size": 4})
    assert host_plan(of_four, gpus=True).engine == {
        "processes": plans.ENGINE_HOST,
        "workers": plans.ENGINE_WORKER + 3 * plans.WORKER_HOST,
    }


def test_the_largest_step_of_an_engine_is_a_prefill_or_the_logits_of_all_sequences(tmp_path):
    few = host_plan(small(tmp_path, vllm={"max_num_seqs": 4}), gpus=False)
    assert few.engine["largest step"] == PREFILL_COPIES * 4 * 100 * 2 * (3 * 16 + (4 + 2 * 2) * 2 + 4 * 8)
    many = host_plan(small(tmp_path, vllm={"max_num_seqs": 10**6}), gpus=False)
    assert many.engine["largest step"] == STEP_LOGITS * 4 * 10**6 * 50


def test_attention_in_fp32_keeps_queries_keys_values_and_its_output_in_fp32(tmp_path):
    packed = {"ds": {"packing_samples": True, "attn_implementation": "sdpa"}}
    layer = 2 * (4 * 8 + 4 * 2 + 2 * 16) + 4 * 2 * (4 + 2) * 2
    assert host_plan(small(tmp_path, **packed), gpus=False).learner["activations"] == 3 * 1000 * layer
    fp32 = {"ds": packed["ds"] | {"param_dtype": "fp32"}}
    layer = 2 * (4 + 4) * 8 + 4 * ((3 * 4 + 2 * 2) * 2 + 4 * 16)
    assert host_plan(small(tmp_path, **fp32), gpus=False).learner["activations"] == 3 * 1000 * layer


def test_every_response_to_a_shared_prompt_keeps_its_keys_and_values(tmp_path):
    """1,000 tokens are a prompt of 50 and 19 responses of 50, each with 100 keys; 2 x 2 heads x 2 values in fp32."""
    packed = {"packing_samples": True, "attn_implementation": "sdpa"}
    learner = host_plan(small(tmp_path, ds=packed), gpus=False).learner
    assert learner["keys of shared prompts"] == 3 * 19 * 100 * 2 * 4 * 2 * 2
    alone = host_plan(small(tmp_path, ds=packed | {"share_prompts": False}), gpus=False).learner
    assert "keys of shared prompts" not in alone


def test_a_checkpoint_on_a_cpu_copies_what_is_a_part_of_a_larger_tensor(tmp_path):
    def copied(**ds):
        return host_plan(small(tmp_path, ds=ds), gpus=False).checkpoint

    assert copied() == 0, "all is written from the states themselves"
    assert copied(param_dtype="fp32") == 4 * N, "master weights are the weights themselves"
    assert copied(zero_stage=2) == 2 * N


def test_pushed_files_are_in_the_nodes_memory_if_shared_memory_has_room_for_both(tmp_path):
    cfg = small(tmp_path)
    assert host_plan(cfg, gpus=False).pushes == 2 * 2 * N
    assert host_plan(cfg, gpus=False, shm_free=4 * N).pushes == 4 * N
    assert host_plan(cfg, gpus=False, shm_free=4 * N - 1).pushes == 0
    assert host_plan(small(tmp_path, vllm={"sync_backend": "gloo"}), gpus=False).pushes == 0
    assert host_plan(small(tmp_path, actor={"num_nodes": 2}), gpus=False).pushes == 0, "they are on a shared disk"


def test_a_rank_of_smollm2_is_planned_within_a_tenth_of_what_was_measured(tmp_path):
    """4.53 GB at the peak: benchmarks.learner --only memory, one rank, rows of 1,280 tokens, no prompt shared. Since
    then norms and MLPs keep .48 GB less (docs/benchmarks.md)."""
    ds = {"packing_samples": True, "attn_implementation": "sdpa", "share_prompts": False}
    cfg = small(tmp_path, train={"max_tokens_per_gpu": 1280}, ds=ds)
    cfg = cfg.model_copy(update={"actor": cfg.actor.model_copy(update={"model_name_or_path": str(tmp_path)})})
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM2))
    assert host_plan(cfg, gpus=False).rank_bytes == pytest.approx(4.05e9, rel=0.1)


def test_an_engine_keeps_the_experts_of_every_token_of_its_cache_if_they_are_replayed(tmp_path):
    """24 values of keys and values a token in bf16, 3 layers x 2 experts of a byte each."""
    cfg = small(tmp_path, rollout={"routing_replay": True}, vllm={"kv_cache_mib": 48})
    assert "experts of cached tokens" not in host_plan(cfg, gpus=False).engine  # a dense model, which is refused
    (tmp_path / "config.json").write_text(json.dumps(MIXTURE))
    assert host_plan(cfg, gpus=False).engine["experts of cached tokens"] == 2**20 * 6
    assert host_plan(cfg, gpus=True, kv_tokens=1000).engine["experts of cached tokens"] == 6000
    without = small(tmp_path, vllm={"kv_cache_mib": 48})
    (tmp_path / "config.json").write_text(json.dumps(MIXTURE))
    assert "experts of cached tokens" not in host_plan(without, gpus=False).engine


def test_two_ranks_share_the_states_and_each_holds_gathered_weights_and_its_own_activations(tmp_path):
    one, two = (host_plan(small(tmp_path, actor={"num_gpus_per_node": n}), gpus=False) for n in (1, 2))
    assert two.ranks == 2
    assert [two.learner[part] for part in ("weights", "gradients", "optimiser")] == [N, 2 * N, 6 * N]
    assert two.learner["gathered weights"] == 2 * N
    assert two.learner["activations"] == one.learner["activations"]


def test_rows_of_a_micro_batch_bound_what_a_rank_holds_unless_they_are_packed(tmp_path):
    def activations(**sections):
        return host_plan(small(tmp_path, **sections), gpus=False).learner["activations"]

    packed = {"ds": {"packing_samples": True, "attn_implementation": "sdpa"}}
    assert 5 * activations(train={"micro_batch_size": 2}) == activations()
    assert activations(train={"micro_batch_size": 2}, **packed) == activations(**packed)


def test_environment_servers_of_the_run_count_with_their_workers(tmp_path):
    cfg = small(tmp_path, env={"url": "", "workers": 3})
    assert host_plan(cfg, gpus=False).others == CONTROLLER + 4 * ENV_WORKER


def test_a_reward_model_without_a_gpu_has_its_weights_and_a_pass_in_host_memory(tmp_path):
    (tmp_path / "reward").mkdir()
    reward = {"name": "model", "model_name_or_path": model(tmp_path / "reward", SMALL), "model_replicas": 2}
    without, plan = (host_plan(small(tmp_path, reward=r), gpus=False) for r in ({}, reward))
    tokens = min(16384, 100 * Config().vllm.max_num_seqs)
    assert plan.reward == {
        "process": LEARNER_PROCESS,
        "weights": 2 * N,
        "pass": tokens * 2 * (3 * 16 + (4 + 2 * 2) * 2 + 4 * 8),
    }
    assert (without.rewards, plan.rewards) == (0, 2)
    assert plan.total == without.total + 2 * plan.reward_bytes
    few = host_plan(small(tmp_path, reward=reward, vllm={"max_num_seqs": 4}), gpus=False)
    assert few.reward["pass"] < plan.reward["pass"], "400 tokens are all that there can be"
    assert host_plan(small(tmp_path, reward=reward | {"num_nodes": 2}), gpus=False).rewards == 4, "all are here"


def test_a_reward_model_on_a_gpu_is_a_process(tmp_path):
    (tmp_path / "reward").mkdir()
    reward = {"name": "model", "model_name_or_path": model(tmp_path / "reward", SMALL)}
    plan = host_plan(small(tmp_path, reward=reward), gpus=True)
    assert (plan.reward_bytes, plan.rewards) == (plans.LEARNER_HOST, 1)


def test_fp32_weights_are_their_own_master_weights(tmp_path):
    plan = host_plan(small(tmp_path, ds={"param_dtype": "fp32"}), gpus=False)
    assert (plan.learner["weights"], plan.learner["optimiser"]) == (4 * N, 8 * N)


def test_beside_gpus_the_host_holds_processes_and_what_is_kept_there(tmp_path):
    plan = host_plan(small(tmp_path, ds={"adam_offload": True}), gpus=True)
    assert plan.learner == {"process": plans.LEARNER_HOST, "kept on the host": 12 * N}
    assert plan.engine == {"processes": plans.ENGINE_HOST}
    assert plan.checkpoint == 12 * N, "states of a GPU are copied to be written"


def test_rank_0_alone_keeps_what_was_pushed_last(tmp_path):
    actor = {"num_gpus_per_node": 4}
    without = host_plan(small(tmp_path, actor=actor, vllm={"sync_backend": "file"}), gpus=True)
    with_it = host_plan(small(tmp_path, actor=actor, vllm={"sync_backend": "delta"}), gpus=True)
    assert with_it.rank_bytes == without.rank_bytes and with_it.total == without.total + 2 * N


def test_what_a_node_needs_just_fits_or_is_refused_with_need_and_remedy(tmp_path):
    plan = host_plan(small(tmp_path), gpus=False)
    assert plan.faults(plan.total * 20 // 19 + 1) == []
    (fault,) = plan.faults(plan.total * 20 // 19 - 1)  # a twentieth must stay free
    assert plan.needs in fault and "train.max_tokens_per_gpu" in fault


def test_size_of_a_run_without_gpus_says_whether_the_host_holds_it(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    argv = ["size", "--cpu", "--recipe", "quickstart_cpu", "--actor.model_name_or_path", str(tmp_path)]
    assert main([*argv, "--host-gib", "64"]) == 0
    assert "learner ranks" in capsys.readouterr().out
    assert main([*argv, "--host-gib", "2"]) == 1
    assert "actor.num_gpus_per_node" in capsys.readouterr().out


def test_size_and_a_run_draw_the_line_at_the_same_memory(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    recipe = ["--recipe", "quickstart_cpu", "--actor.model_name_or_path", str(tmp_path)]
    arguments = argparse.ArgumentParser()
    add_config_flags(arguments, first=())
    cfg = config_of(arguments.parse_args(recipe), makes_data=True)
    needed = host_plan(cfg, gpus=False).total
    for node_bytes, fits in ((needed, False), (needed * 20 // 19 - 1, False), (needed * 20 // 19 + 1, True)):
        size_says = main(["size", "--cpu", *recipe, "--host-gib", repr(node_bytes / GIB)]) == 0
        try:
            check_memory(cfg, replace(CPU, memory=(0, node_bytes)))
            run_says = True
        except ConfigError:
            run_says = False
        assert (size_says, run_says) == (fits, fits), node_bytes


@pytest.mark.parametrize("gpus", [True, False])
def test_a_model_whose_size_is_not_known_has_no_plan(tmp_path, gpus):
    assert host_plan(Config(actor={"model_name_or_path": str(tmp_path)}), gpus=gpus) is None
