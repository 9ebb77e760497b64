"""OpenRLHF's flat flag names (up to 0.10.1) -> its dotted ones."""

from __future__ import annotations

_SECTIONS = {
    "actor": (
        "actor_num_nodes:num_nodes actor_num_gpus_per_node:num_gpus_per_node pretrain:model_name_or_path"
        " actor_learning_rate:adam.lr adam_betas:adam.betas l2:adam.weight_decay lr_warmup_ratio lr_scheduler max_norm"
        " eps_clip eps_clip_low_high dual_clip policy_loss_type aux_loss_coef entropy_loss_coef:entropy_coef"
        " gradient_checkpointing:gradient_checkpointing_enable"
        " gradient_checkpointing_use_reentrant:gradient_checkpointing_reentrant freeze_visual_encoder"
    ),
    "ref": "ref_num_nodes:num_nodes ref_num_gpus_per_node:num_gpus_per_node ref_reward_offload:offload",
    "reward": (
        "reward_num_nodes:num_nodes reward_num_gpus_per_node:num_gpus_per_node reward_pretrain:model_name_or_path"
        " remote_rm_url:remote_url normalize_reward:normalize_enable reward_clip_range:clip_range overlong_buffer_len"
        " overlong_penalty_factor stop_properly_penalty_coef"
    ),
    "critic": (
        "critic_num_nodes:num_nodes critic_num_gpus_per_node:num_gpus_per_node critic_pretrain:model_name_or_path"
        " critic_learning_rate:adam.lr value_clip save_value_network freezing_actor_steps:freezing_steps"
    ),
    "vllm": (
        "vllm_num_engines:num_engines vllm_tensor_parallel_size:tensor_parallel_size vllm_sync_backend:sync_backend"
        " vllm_sync_with_ray:sync_with_ray enable_prefix_caching enforce_eager vllm_enable_sleep:enable_sleep"
        " vllm_gpu_memory_utilization:gpu_memory_utilization"
    ),
    "ds": (
        "zero_stage deepcompile zpg adam_offload attn_implementation use_liger_kernel grad_accum_dtype overlap_comm"
        " deepspeed_enable_sleep:enable_sleep ds_tensor_parallel_size:tensor_parallel_size packing_samples load_in_4bit"
        " lora_rank:lora.rank lora_alpha:lora.alpha target_modules:lora.target_modules lora_dropout:lora.dropout"
        " use_ds_universal_ckpt:use_universal_ckpt universal_ckpt:use_universal_ckpt"
        " ring_attn_size ring_head_stride:ring_attn_head_stride"
        " value_head_prefix bf16:param_dtype param_dtype flash_attn:attn_implementation"
    ),
    "rollout": (
        "rollout_batch_size:batch_size vllm_generate_batch_size micro_rollout_batch_size:micro_batch_size"
        " generate_max_len:max_new_tokens max_new_tokens rollout_max_tokens_per_gpu:max_tokens_per_gpu"
        " n_samples_per_prompt temperature top_p"
    ),
    "train": (
        "num_episodes max_epochs micro_train_batch_size:micro_batch_size train_batch_size:batch_size seed"
        " full_determinism:full_determinism_enable use_dynamic_batch:dynamic_batch_enable"
        " train_max_tokens_per_gpu:max_tokens_per_gpu async_train:async_enable async_queue_size"
        " partial_rollout:partial_rollout_enable enable_ema ema_beta"
        " agent_func_path colocate_actor_ref colocate_critic_reward colocate_all_models:colocate_all"
    ),
    "algo": (
        "advantage_estimator:advantage.estimator lambd:advantage.lambd gamma:advantage.gamma"
        " no_advantage_std_norm:advantage.no_std_norm enable_vllm_is_correction:advantage.is_correction_level"
        " vllm_is_truncated_threshold:advantage.is_correction_threshold init_kl_coef:kl.init_coef kl_target:kl.target"
        " kl_horizon:kl.horizon kl_estimator:kl.estimator use_kl_loss:kl.use_loss"
        " dynamic_filtering:dynamic_filtering_enable dynamic_filtering_reward_range:dynamic_filtering_range"
    ),
    "data": (
        "prompt_data:prompt_dataset prompt_data_probs:prompt_probs prompt_split input_key label_key input_template"
        " apply_chat_template max_samples prompt_max_len:max_len max_len disable_fast_tokenizer dataloader_num_workers"
        " image_key max_images_per_prompt"
    ),
    "eval": (
        "eval_dataset:dataset eval_split:split eval_temperature:temperature"
        " eval_n_samples_per_prompt:n_samples_per_prompt eval_steps:steps"
    ),
    "ckpt": (
        "ckpt_path:path save_path:output_dir save_steps save_hf_ckpt:save_hf disable_ds_ckpt:disable_ds"
        " max_ckpt_num:max_num max_ckpt_mem:max_mem load_checkpoint:load_enable best_metric_key"
    ),
    "logger": (
        "logging_steps use_wandb:wandb.key wandb_org:wandb.org wandb_group:wandb.group wandb_project:wandb.project"
        " wandb_run_name:wandb.run_name use_tensorboard:tensorboard_dir"
    ),
}


def _names() -> dict[str, str]:
    pairs = ((section, *pair.partition(":")[::2]) for section, pairs in _SECTIONS.items() for pair in pairs.split())
    return {old: f"{section}.{new or old}" for section, old, new in pairs}


NAMES = _names()
"""{"pretrain": "actor.model_name_or_path", ...}"""
SWITCHES_WITH_A_VALUE = {
    "bf16": ("ds.param_dtype", "bf16"),
    "flash_attn": ("ds.attn_implementation", "flash_attention_2"),
    "use_kl_estimator_k3": ("algo.kl.estimator", "k3"),
    "use_icepop": ("algo.advantage.is_correction_type", "icepop"),
}
"""Flat switches -> the flag that they became, and its value."""
OLD_CORRECTION = {
    "enable_vllm_is_correction": "algo.advantage.is_correction_enable",
    "vllm_is_correction_type": "algo.advantage.is_correction_type",
}
"""Flat flags of the correction for the engine -> their names of 0.11.0, which RULES_0_11_0 reads."""
GONE = {
    "actor_init_on_gpu": "it is no flag of OpenRLHF 0.11.2 either: models are always made where they are trained.",
    "ptx_coef": "the pretraining loss beside PPO is gone from OpenRLHF, and is not part of this project.",
    "pretrain_data": "the pretraining loss beside PPO is gone from OpenRLHF, and is not part of this project.",
    "pretrain_data_probs": "the pretraining loss beside PPO is gone from OpenRLHF, and is not part of this project.",
    "pretrain_split": "the pretraining loss beside PPO is gone from OpenRLHF, and is not part of this project.",
    "perf": "every run measures its stages: see its report.html.",
    "disable_trace_cache": "ZeRO-3 needs no help here with models whose layers run in a changing order.",
    "aux_loss": "balance experts with actor.aux_loss_coef.",
}
"""Flat flags that OpenRLHF itself has dropped -> what became of them."""
