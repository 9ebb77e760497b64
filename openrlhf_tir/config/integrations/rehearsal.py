"""A recipe cut down to a machine without GPUs: the method stays, sizes, precision and placement change.

What a rehearsal is for: to see every part of a run at work (critic, reward model, reference, agent, filters, pushes)
with a toy model, before GPUs are spent on it.
"""

from __future__ import annotations

from typing import Any

from .recipe_draft import Draft

PROMPTS = 4
SAMPLES = 4
RESPONSE = 64
RESPONSE_WITH_TOOLS = 256
"""Tokens of a response in which a call and a few words fit, where a small model writes them character by character."""
LENGTH = 256
LENGTH_WITH_TOOLS = 4096
"""Tokens of a prompt with its tools' schemas, which a small model may read character by character."""
BATCHES = 2
PLACEMENT: dict[str, Any] = {
    "actor.num_nodes": 1,
    "actor.num_gpus_per_node": 1,
    "vllm.num_engines": 1,
    "vllm.kv_cache_mib": 64,
    "vllm.max_num_seqs": 16,
    "vllm.enforce_eager": True,
    "ds.param_dtype": "fp32",
    "ds.attn_implementation": "eager",
    "filter.names": [],
    "train.num_episodes": 1000,
}
"""One learner process and one engine on a machine without GPUs; no filter, which would drop all of an untrained model's
groups; prompts enough for a few rows."""
WITHOUT = (
    "vllm.tensor_parallel_size",
    "vllm.gpu_memory_utilization",
    "ds.packing_samples",
    "ds.ring_attn_size",
    "ds.use_liger_kernel",
    "ds.adam_offload",
    "ds.zpg",
    "train.colocate_all",
    "train.max_tokens_per_gpu",
    "rollout.max_tokens_per_gpu",
    "rollout.vllm_generate_batch_size",
    "reward.num_nodes",
    "reward.overlong_buffer_len",
    "reward.overlong_penalty_factor",
    "critic.freezing_steps",
    "filter.accuracy_range",
    "filter.sample",
    "eval.dataset",
    "eval.split",
    "eval.steps",
    "eval.temperature",
    "eval.n_samples_per_prompt",
    "data.max_samples",
)
"""Settings about size and GPUs, and about data that a rehearsal does not have."""
OF_SFT: dict[str, Any] = {
    "actor.num_nodes": 1,
    "actor.num_gpus_per_node": 1,
    "ds.param_dtype": "fp32",
    "ds.attn_implementation": "eager",
    "sft.batch_size": 8,
    "sft.max_len": LENGTH,
    "sft.max_steps": 2,
}
REASON = "rehearsal"


def rehearse(draft: Draft) -> None:
    """Cut a draft down to a rehearsal."""
    if "sft.dataset" in draft.settings or "sft.learning_rate" in draft.settings:
        for name in (*WITHOUT, "sft.eval_dataset"):
            draft.unset(name)
        for name, value in OF_SFT.items():
            draft.set(name, value, REASON)
        draft.differs("This is a rehearsal: 2 updates of 8 short rows, in fp32, on one process.")
        return
    s = draft.settings
    prompts, samples = int(s.get("rollout.batch_size", 1024)), int(s.get("rollout.n_samples_per_prompt", 1))
    parts = max(1, prompts * samples // int(s.get("train.batch_size") or prompts * samples))
    for name in [name for name in s if name in WITHOUT or name.startswith("logger.wandb.")]:
        draft.unset(name)
    for name, value in PLACEMENT.items():
        draft.set(name, value, REASON)
    if s.get("reward.model_name_or_path"):
        draft.set("reward.model_replicas", 1, REASON)
    samples = min(samples, SAMPLES)
    size = PROMPTS * samples // min(parts, 2)
    updates = PROMPTS * samples // size * int(s.get("train.max_epochs", 1))
    has_tools = s.get("env.name") == "tools"
    longest = RESPONSE_WITH_TOOLS if has_tools else RESPONSE
    response = min(int(s.get("rollout.max_new_tokens", longest)), longest)
    cut = {
        "rollout.batch_size": PROMPTS,
        "rollout.n_samples_per_prompt": samples,
        "rollout.max_new_tokens": response,
        "data.max_len": LENGTH_WITH_TOOLS if has_tools else LENGTH,
        "train.batch_size": size,
        "train.max_steps": BATCHES * updates,
    }
    for name, value in cut.items():
        draft.set(name, value, REASON)
    if s.get("ckpt.save_steps", -1) != -1:
        draft.set("ckpt.save_steps", updates, REASON)
    draft.differs(
        f"This is a rehearsal: {BATCHES} batches of {PROMPTS} prompts, n_samples_per_prompt = {samples} of at most"
        f" {response} tokens each, no filter, no evaluation, in fp32, with one learner process and one engine. Give a"
        " small model and a few rows: --actor.model_name_or_path, --data.prompt_dataset, and where the script has one"
        " --reward.model_name_or_path and --critic.model_name_or_path."
    )
