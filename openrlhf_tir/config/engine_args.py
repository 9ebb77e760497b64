"""Engine arguments of vLLM that a recipe may set by itself (vllm.engine_args), and why some may not be.

Whoever trains on what an engine samples relies on three things: every token's version is known, its log-prob is of the
distribution that sampled it, and a push replaces all weights. What would break one of them is refused with the reason;
what has a setting of its own is refused with its name. commands/checks/engine_args.py asks vLLM which it knows."""

from __future__ import annotations

from typing import Any

OWN = {
    "model": "actor.model_name_or_path",
    "tokenizer": "actor.model_name_or_path",
    "dtype": "vllm.dtype",
    "tensor_parallel_size": "vllm.tensor_parallel_size",
    "enforce_eager": "vllm.enforce_eager",
    "enable_prefix_caching": "vllm.enable_prefix_caching",
    "gpu_memory_utilization": "vllm.gpu_memory_utilization",
    "kv_cache_memory_bytes": "vllm.kv_cache_mib or vllm.gpu_memory_utilization",
    "enable_sleep_mode": "train.colocate_all",
    "max_num_seqs": "vllm.max_num_seqs",
    "max_model_len": "vllm.max_model_len",
    "seed": "train.seed",
    "enable_return_routed_experts": "rollout.routing_replay",
}
"""Argument -> the setting that it has here."""
NEEDED = {
    "weight_transfer_config": "weight pushes go through the one that vllm.sync_backend names",
    "worker_extension_cls": "it brings the transport of weight pushes into vLLM's workers",
    "scheduling_policy": "a push's canary outranks all other requests by it",
    "logprobs_mode": "it follows from rollout.temperature, top_p, top_k and min_p: the log-probs are of what samples",
    "generation_config": "the model's own file would change temperature and top_k behind the learner's back",
    "override_generation_config": "it would change temperature and top_k behind the learner's back",
    "distributed_executor_backend": (
        "it follows from the nodes: processes where one has GPUs enough for an engine, else Ray"
    ),
    "disable_log_stats": "an engine that makes no progress is found by them",
}
"""Argument -> what it is set for already."""
BREAKING = {
    "data_parallel_size": (
        "every replica would have weights, versions and statistics of its own behind one engine."
        " Set vllm.num_engines instead"
    ),
    "speculative_config": "a push does not reach the draft model. Leave it out",
    "enable_lora": "the adapter is merged into the weights that are pushed (actor.lora). Leave it out",
    "load_format": "the canary is calibrated on the weights that both sides load from the model's files. Leave it out",
    "max_logprobs": "the log-prob of the sampled token is asked for with every request. Leave it out",
    "skip_tokenizer_init": "stop strings and the text of answers need the tokenizer. Leave it out",
    "nnodes": "Ray places the workers of an engine that one node cannot hold. Leave it out",
}
"""Argument -> what would break."""
ONLINE_QUANTIZATION = "fp8"
"""Made by vLLM of the bf16 weights, at the start and after every push alike; the canary tells the log-probs' error."""
FAMILIES = {"data_parallel_size": "data_parallel_"}
"""Argument -> how others begin that break the same."""


def checked(given: dict[str, Any]) -> dict[str, Any]:
    """`given`, if it can be passed on. Raises ValueError with all that cannot."""
    wrong = [f"{name!r} {why}" for name in given if (why := _refusal(name, given[name]))]
    if wrong:
        raise ValueError("vllm.engine_args: " + "; ".join(wrong))
    return given


def _refusal(name: str, value: Any) -> str | None:
    if name in OWN:
        return f"has a setting of its own: set {OWN[name]}"
    if name in NEEDED:
        return f"is set by the run: {NEEDED[name]}. Leave it out"
    for start, why in BREAKING.items():
        if name == start or (start in FAMILIES and name.startswith(FAMILIES[start])):
            return f"is refused: {why}"
    if name == "quantization" and value != ONLINE_QUANTIZATION:
        return (
            f"= {value!r} is refused: its files have other tensors than a push brings."
            f" {ONLINE_QUANTIZATION!r} quantises what is loaded"
        )
    if name == "pipeline_parallel_size" and not (str(value).isdecimal() and int(value) >= 1):
        return f"= {value!r} is no number of stages. Give a whole number from 1 on"
    return None


def pipeline_stages(given: dict[str, Any]) -> int:
    """What vLLM cuts a model's layers into, each with tensor_parallel_size GPUs."""
    return int(given.get("pipeline_parallel_size", 1))
