"""Changes: the configuration of a checkpoint against that of the run that resumes from it. Which field may differ
stands in one table.

    refuse   the run could not go on: its accounting, its files or its order of prompts would not fit
    say      it can, and it is another run from here on: listed at start
    free     where things are and how fast they go

A field that is in neither list is said: what nobody thought of is never silent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .own_files import by_content
from .schema import Config

REFUSE = {
    "train.seed": "the order of the prompts comes from it",
    "data.shuffle": "the order of the prompts comes from it",
    "data.prompt_probs": "the order of the prompts comes from it",
    "data.curriculum": "the order of the prompts comes from it",
    "envs.*.share": "the order of the prompts comes from it",
    "train.env_mask": "which tokens are trained at which update follows from it",
    "train.env_mask_from": "which tokens are trained at which update follows from it",
    "rollout.batch_size": "the accounting of groups was made for it",
    "ds.zero_stage": "the optimiser's shards were cut for it",
    "ds.param_dtype": "the weights were saved in it",
    "actor.optim": "the optimiser's state was saved as that one's",
    "critic.optim": "the optimiser's state was saved as that one's",
    "train.colocate_all": "the optimiser's state was saved as torch's AdamW, or with it as DeepSpeed's",
    "ds.lora.rank": "the weights were saved with it",
    "ds.lora.alpha": "the weights were saved with it",
    "ds.lora.target_modules": "the weights were saved with it",
    "ds.value_head_prefix": "the critic's weights were saved with it",
}
"""`envs.*` is every environment.
Besides, compared as what they amount to: pipeline.max_staleness (S) and, unless ds.zero_stage is 3, the number of
learner ranks; the model and the prompts by content."""

FREE = (
    "run_dir",
    "actor.model_name_or_path",
    "actor.num_nodes",
    "actor.num_gpus_per_node",
    "pipeline.max_staleness",
    "pipeline.stall_timeout_s",
    "data.prompt_dataset",
    "data.prompt_split",
    "data.input_key",
    "data.label_key",
    "data.env_key",
    "data.input_template",
    "data.apply_chat_template",
    "data.rendered",
    "data.max_samples",
    "data.cache_dir",
    "train.resume",
    "train.resume_from",
    "train.resume_or_start",
    "train.new_ledger",
    "train.overwrite",
    "train.max_restarts",
    "train.max_learner_restarts",
    "train.start_wait_s",
    "train.restart_wait_s",
    "train.stop_grace_s",
    "train.save_before_s",
    "train.micro_batch_size",
    "train.max_tokens_per_gpu",
    "ds.overlap_comm",
    "ds.keep_logits_mib",
    "ref.offload",
    "reward.model_replicas",
    "reward.num_nodes",
    "reward.offload",
    "rollout.micro_batch_size",
    "rollout.max_tokens_per_gpu",
    "rollout.vllm_generate_batch_size",
    "data.dataloader_num_workers",
    "reward.model_timeout_s",
    "rollout.heartbeat_s",
    "rollout.unresponsive_s",
    "rollout.port",
    "env.url",
    "env.token_env",
    "env.workers",
    "envs.*.url",
    "envs.*.workers",
    "envs.*.input_template",
    "vllm.num_engines",
    "vllm.tensor_parallel_size",
    "vllm.enforce_eager",
    "vllm.enable_prefix_caching",
    "vllm.packed_logprobs",
    "vllm.gpu_memory_utilization",
    "vllm.max_num_seqs",
    "vllm.kv_cache_mib",
    "train.share_gpus",
    "timeouts",
    "ckpt",
    "logger",
)
"""A field, or a section with all that is in it."""


class Change(NamedTuple):
    field: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.field} {_shown(self.before)} -> {_shown(self.now)}"


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted names of a dumped configuration's fields. `options` and other free tables are one field each."""
    out: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict) and name not in ("options", "server_options", "engine_args"):
            out |= flat(value, f"{prefix}{name}.")
        else:
            out[prefix + name] = value
    return out


def dumped(cfg: Config) -> dict[str, Any]:
    """The configuration as a checkpoint keeps it: JSON, without secrets."""
    tree = cfg.model_dump(mode="json")
    tree["logger"]["wandb"].pop("key")
    return tree


def changes(saved: dict[str, Any], cfg: Config) -> tuple[list[Change], list[Change]]:
    """(refused, to be said). A field that the checkpoint's version did not have counts as its default there; one that
    is gone is said as unset."""
    before = flat(by_content(saved))
    now = flat(by_content(dumped(cfg)))
    default = flat(dumped(Config()))
    pairs = ((f, before.get(f, default.get(f)), now.get(f)) for f in [*now, *(f for f in before if f not in now)])
    differ = [Change(f, was, is_now) for f, was, is_now in pairs if was != is_now]
    return [c for c in differ if refusal(c.field)], [c for c in differ if not refusal(c.field) and not _free(c.field)]


def refusal(field: str) -> str | None:
    """Why a resume may not change the field; None: it may."""
    return REFUSE.get(_general(field))


def _general(field: str) -> str:
    """`envs.calc.share` -> `envs.*.share`: what holds for every environment."""
    parts = field.split(".")
    return ".".join(["envs", "*", *parts[2:]]) if parts[0] == "envs" and len(parts) > 2 else field


def _free(field: str) -> bool:
    general = _general(field)
    return any(general == name or general.startswith(name + ".") for name in FREE)
