"""The flags of OpenRLHF 0.11.2's train_ppo_ray and train_sft: name -> (default, number of values, type).

A table, so that a script can be imported where OpenRLHF is not installed; a test compares it with the installed
parsers. `nargs` is argparse's, 0 for a switch. Defaults that hold the time of the start are None.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class OpenRLHFFlag(NamedTuple):
    """One flag of OpenRLHF's command line."""

    default: Any
    nargs: int | str | None = None
    kind: str = "str"

    @property
    def default_setting(self) -> Any:
        """The default as a value of a setting here: where several values may stand, a list."""
        if isinstance(self.default, tuple):
            return list(self.default)
        several = self.nargs in ("*", "+") and not isinstance(self.default, list)
        return [self.default] if several else self.default


def _switches(*names: str) -> dict[str, OpenRLHFFlag]:
    """Return flags without a value, which are off if they are not given."""
    return dict.fromkeys(names, OpenRLHFFlag(False, 0))


def _values(kind: str, defaults: dict[str, Any]) -> dict[str, OpenRLHFFlag]:
    """Return flags with one value of a type, by name with their defaults."""
    return {name: OpenRLHFFlag(default, None, kind) for name, default in defaults.items()}


def _optimizer(learning_rate: float) -> dict[str, OpenRLHFFlag]:
    """Return the flags of an optimizer, whose names begin with the model's in train_ppo_ray."""
    return {
        "optim": OpenRLHFFlag("adam"),
        "lr_scheduler": OpenRLHFFlag("cosine_with_min_lr"),
        "muon.ns_steps": OpenRLHFFlag(5, None, "int"),
        **_values(
            "float",
            {
                "muon.lr": 0.02,
                "muon.momentum": 0.95,
                "adam.lr": learning_rate,
                "adam.eps": 1e-08,
                "adam.weight_decay": 0.0,
                "lr_warmup_ratio": 0.03,
                "min_lr_ratio": 0.1,
                "max_norm": 1.0,
            },
        ),
        "muon.nesterov": OpenRLHFFlag(True, 0),
        "muon.no_nesterov": OpenRLHFFlag(True, 0),
        "adam.betas": OpenRLHFFlag((0.9, 0.95), 2, "float"),
    }


SHARED: dict[str, OpenRLHFFlag] = {
    **_switches(
        "ckpt.save_hf",
        "ckpt.disable_ds",
        "ckpt.load_enable",
        "ds.use_universal_ckpt",
        "ds.deepcompile",
        "train.full_determinism_enable",
        "ds.adam_offload",
        "ds.use_liger_kernel",
        "ds.overlap_comm",
        "data.disable_fast_tokenizer",
        "ds.load_in_4bit",
        "ds.packing_samples",
        "data.apply_chat_template",
        "use_ms",
    ),
    **_values(
        "str",
        {
            "ckpt.output_dir": "./ckpt",
            "ds.param_dtype": "bf16",
            "ds.attn_implementation": "flash_attention_2",
            "ds.experts_implementation": None,
            "ds.grad_accum_dtype": None,
            "eval.dataset": None,
            "eval.split": "train",
            "data.input_key": "input",
            "logger.wandb.key": None,
            "logger.wandb.org": None,
            "logger.wandb.group": None,
            "logger.wandb.run_name": None,
            "logger.tensorboard_dir": None,
        },
    ),
    **_values(
        "int",
        {
            "ckpt.save_steps": -1,
            "logger.logging_steps": 1,
            "eval.steps": -1,
            "ckpt.max_num": 3,
            "train.batch_size": 128,
            "train.seed": 42,
            "local_rank": -1,
            "ds.zero_stage": 2,
            "ds.zpg": 1,
            "data.dataloader_num_workers": 0,
            "ds.tensor_parallel_size": 1,
            "ds.ring_attn_size": 1,
            "ds.ring_attn_head_stride": 1,
            "ds.lora.rank": 0,
            "ds.lora.alpha": 16,
            "data.max_len": 2048,
        },
    ),
    "ds.lora.dropout": OpenRLHFFlag(0, None, "float"),
    "ds.lora.target_modules": OpenRLHFFlag("all-linear", "*"),
}
"""The flags that both programs have, with the same default."""
TRAIN_PPO_RAY: dict[str, OpenRLHFFlag] = {
    **SHARED,
    **{f"actor.{name}": flag for name, flag in _optimizer(1e-6).items()},
    **{f"critic.{name}": flag for name, flag in _optimizer(9e-6).items()},
    **_switches(
        "train.colocate_actor_ref",
        "train.colocate_critic_reward",
        "train.colocate_all",
        "vllm.sync_with_ray",
        "vllm.enable_prefix_caching",
        "vllm.enforce_eager",
        "vllm.enable_sleep",
        "train.async_enable",
        "train.partial_rollout_enable",
        "actor.gradient_checkpointing_enable",
        "train.enable_ema",
        "actor.gradient_checkpointing_reentrant",
        "ds.enable_sleep",
        "train.dynamic_batch_enable",
        "reward.normalize_enable",
        "critic.save_value_network",
        "algo.kl.unbiased_gradient",
        "algo.kl.use_loss",
        "algo.advantage.no_std_norm",
        "ref.offload",
        "reward.offload",
        "algo.dynamic_filtering_enable",
        "actor.freeze_visual_encoder",
    ),
    **_values(
        "str",
        {
            "vllm.sync_backend": "nccl",
            "algo.advantage.is_correction_level": "off",
            "algo.advantage.is_correction_mode": "mask",
            "algo.advantage.is_correction_gating": "ratio",
            "ckpt.path": "./ckpt/checkpoints_ppo_ray",
            "ckpt.best_metric_key": "",
            "actor.policy_loss_type": "ppo",
            "actor.loss_agg_mode": "token-mean",
            "algo.kl.estimator": "k1",
            "algo.advantage.estimator": "gae",
            "actor.model_name_or_path": None,
            "reward.model_name_or_path": None,
            "reward.remote_url": None,
            "critic.model_name_or_path": None,
            "ds.value_head_prefix": "score",
            "train.agent_func_path": None,
            "data.prompt_dataset": None,
            "data.prompt_probs": None,
            "data.prompt_split": "train",
            "data.label_key": None,
            "data.input_template": None,
            "logger.wandb.project": "openrlhf_train_ppo",
            "data.image_key": "images",
        },
    ),
    **_values(
        "int",
        {
            "ref.num_nodes": 1,
            "ref.num_gpus_per_node": 8,
            "reward.num_nodes": 1,
            "reward.num_gpus_per_node": 8,
            "actor.num_nodes": 1,
            "actor.num_gpus_per_node": 8,
            "critic.num_nodes": 1,
            "critic.num_gpus_per_node": 8,
            "vllm.num_engines": None,
            "vllm.tensor_parallel_size": 1,
            "train.async_queue_size": 1,
            "rollout.max_tokens_per_gpu": None,
            "train.max_tokens_per_gpu": 16192,
            "train.num_episodes": 1,
            "rollout.batch_size": 1024,
            "rollout.vllm_generate_batch_size": None,
            "rollout.micro_batch_size": 1,
            "train.max_epochs": 1,
            "rollout.max_new_tokens": None,
            "data.max_samples": 100000000,
            "train.micro_batch_size": 1,
            "critic.freezing_steps": -1,
            "rollout.n_samples_per_prompt": 1,
            "algo.kl.horizon": 10000,
            "eval.n_samples_per_prompt": 4,
            "data.max_images_per_prompt": 0,
        },
    ),
    **_values(
        "float",
        {
            "vllm.gpu_memory_utilization": 0.95,
            "ckpt.max_mem": math.inf,
            "train.ema_beta": 0.992,
            "actor.eps_clip": 0.2,
            "actor.dual_clip": None,
            "critic.value_clip": 0.5,
            "algo.advantage.lambd": 1,
            "algo.advantage.gamma": 1,
            "rollout.top_p": 1.0,
            "rollout.temperature": 1.0,
            "algo.kl.target": None,
            "algo.kl.init_coef": 0.01,
            "actor.aux_loss_coef": 0,
            "actor.entropy_coef": None,
            "reward.overlong_buffer_len": None,
            "reward.overlong_penalty_factor": 1,
            "reward.stop_properly_penalty_coef": None,
            "eval.temperature": 0.6,
        },
    ),
    "algo.advantage.is_correction_threshold": OpenRLHFFlag([0.5, 5.0], "+", "float"),
    "actor.eps_clip_low_high": OpenRLHFFlag(None, 2, "float"),
    "reward.clip_range": OpenRLHFFlag((-10, 10), 2, "float"),
    "algo.dynamic_filtering_range": OpenRLHFFlag((0, 1), 2, "float"),
}
TRAIN_SFT: dict[str, OpenRLHFFlag] = {
    **SHARED,
    **_optimizer(5e-6),
    **_switches(
        "model.gradient_checkpointing_enable",
        "model.gradient_checkpointing_reentrant",
        "model.pretrain_mode_enable",
        "data.multiturn",
    ),
    **_values(
        "str",
        {
            "ckpt.path": "./ckpt/checkpoints_sft",
            "model.model_name_or_path": None,
            "data.dataset": None,
            "data.dataset_probs": None,
            "data.dataset_split": "train",
            "data.output_key": None,
            "data.input_template": "User: {}\nAssistant: ",
            "data.tokenizer_chat_template": None,
            "logger.wandb.project": "openrlhf_train_sft",
        },
    ),
    **_values(
        "int",
        {
            "ckpt.max_mem": 100000000,
            "train.micro_batch_size": 8,
            "train.max_epochs": 2,
            "data.max_samples": 1000000,
        },
    ),
    "model.aux_loss_coef": OpenRLHFFlag(0, None, "float"),
}
