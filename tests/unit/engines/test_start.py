"""vLLM's engine arguments: which backend starts its workers, and what a recipe may pass on."""

from __future__ import annotations

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.engines.start import executor_backend, memory_args
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.machine.gpus import CPU_ONLY, runs_on_gpus, visible_gpus


def test_workers_are_processes_where_the_actor_holds_the_gpus_and_rays_where_it_holds_none():
    assert executor_backend(1, gpu=True, visible=1) is None
    assert executor_backend(2, gpu=True, visible=2) == "mp"
    assert executor_backend(16, gpu=True, visible=0) == "ray"
    assert executor_backend(2, gpu=False, visible=0) == "mp", "gloo, on CPU"


def test_a_process_sees_the_gpus_that_ray_gave_it_and_without_ray_all_of_the_node():
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "3,5"}, on_node=8) == 2
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, on_node=8) == 0
    assert visible_gpus({}, on_node=8) == 8


def test_an_actor_without_gpus_is_still_one_of_a_run_on_gpus_and_none_of_a_cpu_run_is():
    assert runs_on_gpus({"CUDA_VISIBLE_DEVICES": ""}, on_node=8)
    assert not runs_on_gpus(CPU_ONLY, on_node=8)
    assert not runs_on_gpus({}, on_node=0)


def test_the_stages_of_a_pipeline_count_as_gpus_of_the_engine():
    vllm = Config(
        vllm={"tensor_parallel_size": 4, "engine_args": {"pipeline_parallel_size": 2, "max_num_batched_tokens": 16384}}
    ).vllm
    assert vllm.world_size == 8


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"max_model_len": 9}, r"max_model_len.*data\.max_len"),
        ({"logprobs_mode": "raw_logits"}, r"logprobs_mode.*rollout\.temperature"),
        ({"data_parallel_size": 2}, r"data_parallel_size\b.*vllm\.num_engines"),
        ({"data_parallel_size_local": 2}, r"data_parallel_size_local.*vllm\.num_engines"),
        ({"speculative_config": {}}, r"vllm\.engine_args: 'speculative_config' "),
        ({"spec_model": "draft"}, r"vllm\.engine_args: 'spec_model' "),
        ({"kv_transfer_config": {"kv_connector": "LMCacheConnectorV1"}}, r"vllm\.engine_args: 'kv_transfer_config' "),
        ({"kv_offloading_size": 8.0, "kv_offloading_backend": "lmcache"}, r"'kv_offloading_backend' = 'lmcache' "),
        ({"logits_processors": ["mine.Ban"]}, r"vllm\.engine_args: 'logits_processors' "),
        ({"revision": "step_100"}, r"vllm\.engine_args: 'revision' "),
        ({"quantization": "awq"}, r"vllm\.engine_args: 'quantization' = 'awq' .*'fp8' "),
        ({"pipeline_parallel_size": 0}, r"vllm\.engine_args: 'pipeline_parallel_size' = 0 .* 1 "),
    ],
)
def test_what_versions_log_probs_and_pushes_depend_on_is_refused_with_the_reason(given, why):
    with pytest.raises((ConfigError, ValueError), match=why):
        Config(vllm={"engine_args": given})


def test_what_breaks_nothing_is_passed_on():
    given = {
        "kv_cache_dtype": "fp8",
        "quantization": "fp8",
        "max_num_batched_tokens": 16384,
        "kv_offloading_size": 8.0,
        "kv_offloading_backend": "native",
        "hf_overrides": {"rope_scaling": {"factor": 2.0}},
    }
    assert Config(vllm={"engine_args": given}).vllm.engine_args == given


def test_an_engine_with_a_kv_cache_of_fixed_size_asks_for_no_share_of_the_card():
    """Beside a learner the share is not free, and vLLM would refuse to start the engine again."""
    fixed = memory_args(Config(vllm={"kv_cache_mib": 8192, "gpu_memory_utilization": 0.9}), gpu=True)
    assert fixed["kv_cache_memory_bytes"] == 8192 * 2**20
    assert 0 < fixed["gpu_memory_utilization"] <= 0.01
    measured = memory_args(Config(vllm={"gpu_memory_utilization": 0.7}), gpu=True)
    assert measured["gpu_memory_utilization"] == 0.7
    assert "kv_cache_memory_bytes" not in measured
    on_cpu = memory_args(Config(vllm={"kv_cache_mib": 256}), gpu=False)
    assert on_cpu["kv_cache_memory_bytes"] == 256 * 2**20
    assert "gpu_memory_utilization" not in on_cpu


def test_blocks_of_a_cpu_engines_cache_are_small_enough_for_prompts_to_share_them():
    pytest.importorskip("vllm")
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    [allowed] = CPUAttentionBackend.get_supported_kernel_block_sizes()
    assert memory_args(Config(), gpu=False)["block_size"] == allowed.base
    assert "block_size" not in memory_args(Config(), gpu=True)
