"""Make vLLM's environment variables and engine arguments from the configuration.

How CPU and GPU differ is decided here and nowhere else.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..config import Config
from ..machine.gpus import runs_on_gpus, visible_gpus
from ..memory.bounds import CPU_KV_CACHE_MIB, CPU_PREFILL_TOKENS
from ..pushes import CANARY_TEXTS
from .packed_logprobs import SCHEDULER

if TYPE_CHECKING:
    from vllm.engine.arg_utils import AsyncEngineArgs

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
CPU_BLOCK_TOKENS = 32
"""Tokens of a block of a CPU engine's KV cache, the fewest that its attention takes; vLLM's own default is 128. Prompts
that share less than a block are computed once for each sample, and half of a sequence's last block is empty."""
NO_SHARE = 0.01
"""vLLM's gpu_memory_utilization of an engine whose KV cache has a fixed size; 0 is not allowed."""
GPU_STEP_TOKENS = 8192
"""Tokens of one engine step on a GPU, prefill and decoding together. vLLM's 2,048 cuts the prefill after a weight
push into many steps, during which the card decodes at a fraction of its speed."""


class LatestStats:
    """A vLLM stat logger that keeps the scheduler's last figures. It is its own factory."""

    def __init__(self) -> None:
        self.running = 0
        self.kv_usage = 0.0
        self.prefix_tokens = 0
        """Prompt tokens that were looked up in the prefix cache since the engine started."""
        self.prefix_hits = 0
        """Prompt tokens that were found there."""
        self.preemptions = 0
        """Requests that lost their KV cache to others since the engine started."""
        self.tokens_done = 0
        """Tokens sampled since the engine started, and those of prefills that are over, of all requests."""
        self.prefill_s = 0.0
        """Seconds since the engine started of steps that computed tokens of prompts (vllm_scheduler.py)."""

    def __call__(self, vllm_config: Any, engine_index: int = 0) -> LatestStats:
        return self

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        """Take the figures of one engine step; called by vLLM."""
        if scheduler_stats:
            self.running = scheduler_stats.num_running_reqs
            self.kv_usage = scheduler_stats.kv_cache_usage
            self.prefix_tokens += scheduler_stats.prefix_cache_stats.queries
            self.prefix_hits += scheduler_stats.prefix_cache_stats.hits
            if scheduler_stats.iteration_details:
                self.prefill_s += scheduler_stats.iteration_details.elapsed_ms / 1e3
        if iteration_stats:
            self.preemptions += iteration_stats.num_preempted_reqs
            self.tokens_done += iteration_stats.num_generation_tokens + iteration_stats.num_prompt_tokens

    def log_engine_initialized(self) -> None:
        """Do nothing: vLLM requires this method."""


def prepare_environment(*, gpu: bool) -> None:
    """Set environment variables for vLLM. Must run before vllm is imported; the engine's processes inherit them."""
    env = os.environ
    env.setdefault("VLLM_NO_USAGE_STATS", "1")
    env.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # else a push warns about every layer that has no weights
    if gpu:
        # CUDA does not work in a fork of a process that has as much as counted its GPUs.
        env.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        return
    env.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # one process fewer per engine
    env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # "auto" binds every engine to core 0
    env.pop("VLLM_CPU_KVCACHE_SPACE", None)  # would override vllm.kv_cache_mib
    env.setdefault("OMP_NUM_THREADS", "1")
    # The sampler's one compiled helper costs 25 s of C++ compilation on the first request and gains nothing here.
    env.setdefault("TORCHDYNAMO_DISABLE", "1")


def executor_backend(world_size: int, *, gpu: bool, visible: int) -> str | None:
    """Return how vLLM starts the workers of an engine; None for a single worker.

    It is always given, because vLLM would use Ray in every process that has a placement group.

    Args:
        world_size: Number of workers.
        gpu: True if the engine runs on GPUs.
        visible: Number of GPUs that this process sees.

    Returns:
        'mp': worker processes beside this one, which see the GPUs that Ray gave the actor. 'ray': the actor was given
        no GPUs, and the workers have bundles of their own.
    """
    if world_size == 1:
        return None
    return "mp" if not gpu or visible >= world_size else "ray"


def keeps_copy(cfg: Config) -> bool:
    """Return True if the node keeps a copy of the weights, for deltas to continue.

    vLLM's workers read it, and workers that Ray starts may be on other nodes.
    """
    return cfg.vllm.pushes_changes and not workers_by_ray(cfg)


def workers_by_ray(cfg: Config) -> bool:
    """Return True if Ray starts vLLM's workers, maybe on other nodes."""
    return executor_backend(cfg.vllm.world_size, gpu=runs_on_gpus(), visible=visible_gpus()) == "ray"


def packs_logprobs(cfg: Config) -> bool:
    """Return True if the engine's requests get their log-probs as one array per step (packed_logprobs.py).

    With vllm.engine_args.scheduler_cls the log-probs arrive in vLLM's own way.
    """
    return "scheduler_cls" not in cfg.vllm.engine_args


def memory_args(cfg: Config, *, gpu: bool) -> dict[str, Any]:
    """Return vLLM's engine arguments that bound its memory: the KV cache, and the tokens of one engine step."""
    v = cfg.vllm
    if not gpu:
        # vLLM 0.29 rewinds the generator of a seeded request whose prefill was cut in two, and a CPU generator cannot
        # be rewound (RuntimeError: CPU Generator does not use offset): the engine dies. So no prefill is cut here.
        return {
            "kv_cache_memory_bytes": (v.kv_cache_mib or CPU_KV_CACHE_MIB) << 20,
            "block_size": CPU_BLOCK_TOKENS,
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(CPU_PREFILL_TOKENS, cfg.data.max_len),
        }
    step = {"max_num_batched_tokens": GPU_STEP_TOKENS}
    if v.kv_cache_mib is None:
        return {"gpu_memory_utilization": v.gpu_memory_utilization, **step}
    # vLLM then starts without measuring what is free, and reads gpu_memory_utilization for one thing alone: it refuses
    # to start if that share of the card is not free, which it may not be beside a learner that trains.
    return {"gpu_memory_utilization": NO_SHARE, "kv_cache_memory_bytes": v.kv_cache_mib << 20, **step}


def engine_args(model: str, cfg: Config, *, gpu: bool, index: int) -> AsyncEngineArgs:
    """Return vLLM's engine arguments. Imports vllm, so call `prepare_environment` first.

    Args:
        model: A directory, or a name on the hub.
        cfg: The run's configuration.
        gpu: True if the engine runs on GPUs.
        index: Number of the engine. Engines of different numbers sample differently.
    """
    from vllm.config import WeightTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    v = cfg.vllm
    memory = memory_args(cfg, gpu=gpu)
    memory = {name: value for name, value in memory.items() if name not in v.engine_args}
    if packs_logprobs(cfg):
        memory["scheduler_cls"] = SCHEDULER
    return AsyncEngineArgs(
        **v.engine_args,  # none of them is one of the following: config/engine_args.py
        distributed_executor_backend=executor_backend(v.world_size, gpu=gpu, visible=visible_gpus()),
        model=model,
        dtype=DTYPES[cfg.ds.param_dtype] if v.dtype == "auto" else v.dtype,
        tensor_parallel_size=v.tensor_parallel_size,
        enforce_eager=v.enforce_eager or not gpu,
        enable_prefix_caching=v.enable_prefix_caching,
        enable_sleep_mode=cfg.train.colocate_all,
        enable_return_routed_experts=cfg.rollout.routing_replay,
        # If a push keeps the KV cache, running requests keep their slots: the additional ones are for the canary.
        max_num_seqs=v.max_num_seqs + (CANARY_TEXTS if cfg.pipeline.keeps_kv else 0),
        max_model_len=cfg.data.max_len,
        seed=cfg.train.seed + 1000 * index,
        scheduling_policy="priority",  # by order of arrival, except for the canary
        # The model's own generation config would change temperature and top_k of requests without any. Its EOS ids are
        # used all the same.
        generation_config="vllm",
        # Log-probs are of the distribution that samples, by which the policy ratio divides.
        logprobs_mode="raw_logprobs" if cfg.rollout.plain else "processed_logprobs",
        # For pushes by file. The tensors of a broadcast arrive by a method of the extension.
        weight_transfer_config=WeightTransferConfig(backend="file"),
        worker_extension_cls="openrlhf_tir.engines.worker_extension.WorkerExtension",
        **memory,
    )
