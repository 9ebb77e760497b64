"""vLLM start: Config -> environment variables and engine arguments. How CPU and GPU differ is here and nowhere else."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..config import Config
from ..machine import runs_on_gpus, visible_gpus

if TYPE_CHECKING:
    from vllm.engine.arg_utils import AsyncEngineArgs

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
CPU_KV_CACHE_MIB = 256
"""KV cache of a CPU engine when vllm.kv_cache_mib is unset; vLLM's own default is a share of the whole machine."""
CANARIES = 8
"""Texts that a push is proved on at once."""
CPU_PREFILL_TOKENS = 4096
"""Prefill of one engine step on CPU."""
GPU_STEP_TOKENS = 8192
"""Tokens of one engine step on a GPU, prefill and decoding together. vLLM's 2,048 cuts the prefill after a weight
push into many steps, during which the card decodes at a fraction of its speed."""


class LatestStats:
    """A vLLM stat logger that keeps the scheduler's last word. It is its own factory."""

    def __init__(self) -> None:
        self.running, self.waiting, self.kv_usage = 0, 0, 0.0
        self.prefix_tokens = self.prefix_hits = self.preemptions = 0
        """Counters since the engine started: prompt tokens looked up in the prefix cache, and found; requests that lost
        their KV to others."""
        self.tokens_done = 0
        """Tokens sampled or prefilled since the engine started, for whoever asked."""

    def __call__(self, vllm_config: Any, engine_index: int = 0) -> LatestStats:
        return self

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        if s := scheduler_stats:
            self.running, self.waiting, self.kv_usage = s.num_running_reqs, s.num_waiting_reqs, s.kv_cache_usage
            self.prefix_tokens += s.prefix_cache_stats.queries
            self.prefix_hits += s.prefix_cache_stats.hits
        if iteration_stats:
            self.preemptions += iteration_stats.num_preempted_reqs
            self.tokens_done += iteration_stats.num_generation_tokens + iteration_stats.num_prompt_tokens

    def log_engine_initialized(self) -> None:
        """vLLM asks for this method; there is nothing to log."""


def prepare_environment(*, gpu: bool) -> None:
    """Must run before vllm is imported in this process; the engine's processes inherit it."""
    env = os.environ
    env.setdefault("VLLM_NO_USAGE_STATS", "1")
    env.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # a push warns about every layer that has no weights of its own
    if gpu:
        return
    env.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the engine lives in the actor's process: one process fewer
    env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # "auto" binds every engine to core 0
    env.pop("VLLM_CPU_KVCACHE_SPACE", None)  # would override vllm.kv_cache_mib
    env.setdefault("OMP_NUM_THREADS", "1")
    # The sampler's one compiled helper costs 25 s of C++ compilation on the first request and gains nothing here.
    env.setdefault("TORCHDYNAMO_DISABLE", "1")


def executor_backend(world_size: int, *, gpu: bool, visible: int) -> str | None:
    """How vLLM starts the workers of an engine. Named, as vLLM would take Ray in every process that has a placement
    group.

    'mp': processes beside it, which see the GPUs that Ray gave the actor; 'ray': it was given none, its workers have
    bundles of their own."""
    if world_size == 1:
        return None
    return "mp" if not gpu or visible >= world_size else "ray"


def keeps_copy(cfg: Config) -> bool:
    """Whether the node keeps the weights for deltas to continue: vLLM's workers read them, and those that Ray starts
    may be on other nodes."""
    v = cfg.vllm
    return v.sync_delta and executor_backend(v.world_size, gpu=runs_on_gpus(), visible=visible_gpus()) != "ray"


def engine_args(model: str, cfg: Config, *, gpu: bool, index: int) -> AsyncEngineArgs:
    """Imports vllm: call `prepare_environment` first. Engines of different `index` sample differently."""
    from vllm.config import WeightTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    v = cfg.vllm
    memory: dict[str, Any] = {"gpu_memory_utilization": v.gpu_memory_utilization}
    if gpu and v.kv_cache_mib:
        memory["kv_cache_memory_bytes"] = v.kv_cache_mib << 20  # vLLM then starts without measuring what is free
    if not gpu:
        memory = {"kv_cache_memory_bytes": (v.kv_cache_mib or CPU_KV_CACHE_MIB) << 20}
        # vLLM 0.29 rewinds the generator of a seeded request whose prefill was cut in two, and a CPU generator cannot
        # be rewound (RuntimeError: CPU Generator does not use offset): the engine dies. So no prefill is cut here.
        memory |= {
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(CPU_PREFILL_TOKENS, v.max_model_len or cfg.data.max_len),
        }
    else:
        memory["max_num_batched_tokens"] = GPU_STEP_TOKENS
    memory = {name: value for name, value in memory.items() if name not in v.engine_args}
    return AsyncEngineArgs(
        **v.engine_args,  # none of them is one of the following: config/engine_args.py
        distributed_executor_backend=executor_backend(v.world_size, gpu=gpu, visible=visible_gpus()),
        model=model,
        dtype=DTYPES[cfg.ds.param_dtype] if v.dtype == "auto" else v.dtype,
        tensor_parallel_size=v.tensor_parallel_size,
        enforce_eager=v.enforce_eager or not gpu,
        enable_prefix_caching=v.enable_prefix_caching,
        enable_sleep_mode=cfg.train.colocate_all,
        # running requests that keep their KV cache keep their places as well: these are the canary's
        max_num_seqs=v.max_num_seqs + (CANARIES if cfg.pipeline.keeps_kv else 0),
        max_model_len=v.max_model_len or cfg.data.max_len,
        seed=cfg.train.seed + 1000 * index,
        scheduling_policy="priority",  # by arrival, as ever, but for the canary
        # the model's own file would set temperature and top_k of requests that name none; its EOS ids still count
        generation_config="vllm",
        # of the distribution that samples: what the ratio divides by
        logprobs_mode="raw_logprobs" if cfg.rollout.plain else "processed_logprobs",
        # the loading's; a broadcast's tensors come in by the extension's own method
        weight_transfer_config=WeightTransferConfig(backend="file"),
        worker_extension_cls="openrlhf_tir.weights.file_backend.WorkerExtension",
        **memory,
    )
