"""Which of vLLM's engine arguments a recipe may set directly (vllm.engine_args), and why not the others.

Training relies on three facts about an engine: every token's version is known, its log-prob is of the distribution that
sampled it, and a push replaces all weights. An argument that would break one of them is refused with the reason; one
that has a setting of its own is refused with the setting's name. cli/checks/engine_args.py asks vLLM which
arguments it knows.
"""

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
    "max_model_len": "data.max_len",
    "seed": "train.seed",
    "enable_return_routed_experts": "rollout.routing_replay",
}
"""Argument -> its setting."""
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
"""Argument that the run sets itself -> what for."""
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
    "kv_transfer_config": (
        "a push does not empty another store of keys and values, and later requests would read those of older weights."
        " Leave it out"
    ),
    "logits_processors": "the learner does not change its logits, so it would train another distribution. Leave it out",
    "revision": "the learner loads the model's main revision. Give a directory with the other one instead",
    "tokenizer_revision": "the learner loads the model's main revision. Give a directory with the other one instead",
    "nnodes": "Ray places the workers of an engine that one node cannot hold. Leave it out",
}
"""Argument -> what it would break."""
ONLINE_QUANTIZATION = "fp8"
"""vLLM makes it of the bf16 weights, at the start and after every push. The canary measures the log-probs' error."""
FAMILIES = {"data_parallel_size": "data_parallel_", "speculative_config": "spec_"}
"""Argument -> prefix of others that break the same."""


def checked(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments if vLLM may get them. Raises ValueError that names all others."""
    refused = [f"{name!r} {reason}" for name in arguments if (reason := refusal(name, arguments[name]))]
    if refused:
        raise ValueError("vllm.engine_args: " + "; ".join(refused))
    return arguments


def refusal(name: str, value: Any) -> str | None:
    """Return why an argument is refused, to follow its name; None if it is not."""
    if name in OWN:
        return f"has a setting of its own: set {OWN[name]}"
    if name in NEEDED:
        return f"is set by the run: {NEEDED[name]}. Leave it out"
    for breaking, reason in BREAKING.items():
        if name == breaking or (breaking in FAMILIES and name.startswith(FAMILIES[breaking])):
            return f"is refused: {reason}"
    if name == "quantization" and value != ONLINE_QUANTIZATION:
        return (
            f"= {value!r} is refused: its files have other tensors than a push brings."
            f" {ONLINE_QUANTIZATION!r} quantises what is loaded"
        )
    if name == "kv_offloading_backend" and value != "native":
        return f"= {value!r} is refused: {BREAKING['kv_transfer_config']}, or 'native'"
    if name == "pipeline_parallel_size" and not (str(value).isdecimal() and int(value) >= 1):
        return f"= {value!r} is not a number of stages. Give a whole number of 1 or more"
    return None


def pipeline_stages(arguments: dict[str, Any]) -> int:
    """Return the number of parts that vLLM cuts a model's layers into, each with tensor_parallel_size GPUs."""
    return int(arguments.get("pipeline_parallel_size", 1))
