"""Overrides of verl that set nothing here: those that need nothing, and those that a sentence speaks of.

NEEDS_NOTHING    changes nothing that is trained, or asks for what is so here in any case
DIFFERENCES      has no counterpart: why, or what to do instead
"""

from __future__ import annotations

import re

from ...algorithms.advantages import ESTIMATORS
from .recipe_draft import NO_SETTING, Difference, Draft, sentence_about
from .verl_settings import ACTOR, DEFAULTS, MODEL, NUMBERS, OPTIMISER, ROLLOUT, VerlSettings, dotted_names, shown

NEEDS_NOTHING = (
    *dotted_names(
        {
            "actor_rollout_ref": "hybrid_engine nccl_timeout",
            ACTOR: (
                "strategy use_torch_compile use_dynamic_bsz ppo_micro_batch_size shuffle entropy_checkpointing"
                " data_loader_seed entropy_from_logits_with_chunking calculate_entropy checkpoint.* profiler.*"
                " use_remove_padding use_fused_kernels calculate_sum_pi_squared"
            ),
            f"{ACTOR}.fsdp_config": (
                "fsdp_size forward_prefetch use_orig_params wrap_policy.* reshard_after_forward strategy offload_policy"
                " param_offload entropy_checkpointing use_torch_compile mixed_precision.*"
            ),
            "actor_rollout_ref.ref": (
                "strategy use_torch_compile entropy_checkpointing entropy_from_logits_with_chunking"
                " log_prob_use_dynamic_bsz log_prob_max_token_len_per_gpu log_prob_micro_batch_size"
                " log_prob_micro_batch_size_per_gpu profiler.* ulysses_sequence_parallel_size fsdp_config.*"
            ),
            ROLLOUT: (
                "mode load_format free_cache_engine name layered_summon calculate_log_probs skip_tokenizer_init"
                " enable_chunked_prefill disable_log_stats log_prob_use_dynamic_bsz multi_stage_wake_up"
                " agent.num_workers checkpoint_engine.* trace.* profiler.* prometheus.* cudagraph_capture_sizes"
                " log_prob_micro_batch_size"
            ),
            f"{ROLLOUT}.multi_turn": (
                "enable use_inference_chat_template tokenization_sanity_check_mode tool_response_truncate_side"
            ),
            MODEL: "use_fused_kernels fused_kernel_options.* use_shm enable_activation_offload tiled_mlp.* torch_dtype",
            "critic": (
                "strategy use_dynamic_bsz forward_max_token_len_per_gpu enable shuffle ppo_micro_batch_size* profiler.*"
                " ppo_max_token_len_per_gpu model.use_remove_padding model.enable_gradient_checkpointing"
                " model.fsdp_config.* ulysses_sequence_parallel_size model.tokenizer_path forward_micro_batch_size*"
                " checkpoint.*"
            ),
            "data": (
                "return_raw_chat return_raw_input_ids return_full_prompt filter_overlong_prompts dataloader_num_workers"
                " use_shm filter_overlong_prompts_workers val_batch_size"
                " return_multi_modal_inputs validation_shuffle"
            ),
            "reward_model": (
                "micro_batch_size* use_dynamic_bsz forward_max_token_len_per_gpu use_reward_loop num_workers strategy"
                " nnodes n_gpus_per_node model.use_remove_padding model.fsdp_config.* model.input_tokenizer"
                " launch_reward_fn_async rollout.* enable_resource_pool"
                " reward_kwargs.overlong_buffer_cfg.log reward_kwargs.max_resp_len profiler.*"
            ),
            "trainer": (
                "balance_batch device use_legacy_worker_impl del_local_ckpt_after_load val_before_train"
                " default_hdfs_dir ray_wait_register_center_timeout max_critic_ckpt_to_keep log_val_generations"
                " profile*"
            ),
            "algorithm": (
                "filter_groups.max_num_gen_batches filter_groups.metric rollout_correction.use_pure_rollout_correction"
            ),
            "async_training": "staleness_threshold trigger_parameter_sync_step partial_rollout",
        }
    ),
    *("hydra.*", "ray_kwargs.*", "ray_init.*", "global_profiler.*", "transfer_queue.*"),
)
"""Overrides that change nothing that is trained, or ask for what is so here in any case; `*` is any text. Some of them
are read for certain methods, and change nothing with the others."""
_NEEDS_NOTHING = re.compile("|".join(re.escape(name).replace(r"\*", ".*") for name in NEEDS_NOTHING))

DIFFERENCES = (
    Difference(
        r"actor_rollout_ref\.(actor|ref)\.megatron\..*|critic\.megatron\..*|.*\.override_transformer_config\..*",
        "Megatron's parallelism is not available: the learner is ZeRO-3 on all ranks, and shares long sequences by"
        " ds.ring_attn_size",
    ),
    Difference(
        rf"{ACTOR}\.fsdp_config\.model_dtype",
        "bf16 weights with fp32 masters here",
        harmless=(None, "fp32", "float32", "bfloat16", "bf16"),
    ),
    Difference(
        rf"{OPTIMISER}\.optimizer",
        "AdamW here, or actor.optim = 'muon'",
        harmless=(None, "AdamW", "adamw", "Adam", "adam"),
    ),
    Difference(rf"{OPTIMISER}\.lr_decay_steps", "the learning rate's schedule runs over train.max_steps"),
    Difference(r".*\.override_optimizer_config\..*", "not an option of DeepSpeed's Adam; see ds.adam_offload"),
    Difference(r".*\.use_prefix_grouper", "see ds.share_prompts"),
    Difference(
        r"actor_rollout_ref\.(model\.mtp|rollout\.mtp)\..*|.*\.mtp\..*", "multi-token prediction is not trained"
    ),
    Difference(
        r".*\.router_replay\..*|.*enable_rollout_routing_replay",
        "see rollout.routing_replay: the learner uses the experts that the engine returns",
    ),
    Difference(
        rf"{MODEL}\.(external_lib|custom_chat_template|override_config\..*|tokenizer_path|hf_.*)",
        "set it in the model's directory (config.json, chat_template.jinja)",
        harmless=(None,),
    ),
    Difference(r".*trust_remote_code", "code that comes with a model is not run: models must be in transformers"),
    Difference(rf"{MODEL}\.lora_adapter_path", "adapters begin anew; merge the old one first", (None, False, "")),
    Difference(
        rf"{MODEL}\.exclude_modules",
        "name those that get an adapter in ds.lora.target_modules",
        harmless=(None, False, "", []),
    ),
    Difference(
        r"data\.(image_key|video_key|image_patch_size)|.*freeze_vision_tower", "pictures and videos are not supported"
    ),
    Difference(
        r"data\.custom_cls\..*",
        "a data set class of the user's is not called: write its rows into a JSONL or parquet file",
    ),
    Difference(r"data\.(sampler|datagen)\..*", "rows are drawn by data.shuffle and data.curriculum"),
    Difference(
        r"data\.reward_fn_key",
        "rewards get the column data_source: rename the column, or read the other one from extra_info",
        harmless=(None, "data_source"),
    ),
    Difference(r"data\.tokenizer", "the tokenizer is the one in the model's directory"),
    Difference(r"data\.gen_batch_size", "batches are filled continuously: no number of prompts is sampled at a time"),
    Difference(r"data\.truncation", "prompts are never cut; longer ones are left out", harmless=(None, False, "error")),
    Difference(
        rf"{ROLLOUT}\.engine_kwargs\.(sglang|trtllm)\..*",
        "an option of another engine; engines are vLLM here",
        harmless=(None,),
    ),
    Difference(
        rf"{ROLLOUT}\.(data_parallel_size|expert_parallel_size|pipeline_model_parallel_size)",
        "give it in vllm.engine_args if vLLM shall do it",
        harmless=(None, False, 1),
    ),
    Difference(rf"{ROLLOUT}\.quantization.*", "see vllm.engine_args (quantization)"),
    Difference(rf"{ROLLOUT}\.over_sample_rate", "what faults leave of a group is trained (rollout.min_valid)"),
    Difference(
        rf"{ROLLOUT}\.multi_turn\.interaction_config_path",
        "an interaction is an environment here: write it as a class (docs/environments.md), whose replies are the"
        " user's turns",
    ),
    Difference(rf"{ROLLOUT}\.ignore_eos", "a response ends with the model's end token"),
    Difference(rf"{ROLLOUT}\.do_sample", "responses are sampled, with rollout.temperature", harmless=(None, True)),
    Difference(
        rf"{ROLLOUT}\.logprobs_mode",
        "the engine's log-probs are those of the distribution that it samples from",
        harmless=(None, "processed_logprobs"),
    ),
    Difference(
        rf"{ROLLOUT}\.(agent\..*|custom_async_server\..*)",
        "an agent loop of verl's is not run: write the loop as an agent that calls the policy's OpenAI endpoint"
        ' (rollout.agent = "external", docs/rollout.md)',
        harmless=(None, False, "single_turn_agent", "tool_agent"),
    ),
    Difference(r"reward_model\.max_length", "the reward model reads whole responses"),
    Difference(
        r"reward_model\.reward_manager",
        "rewards are called as verl's naive manager does",
        harmless=(None, "naive", "batch", "dapo", "prime"),
    ),
    Difference(
        r"reward_model\.sandbox_fusion\..*",
        "code is not graded in SandboxFusion: give a reward function that calls it, or use the environment python_tir",
    ),
    Difference(
        r"algorithm\.(rollout_correction\.(rollout_rs.*|rollout_token_veto_threshold|rollout_is_batch_normalize)"
        r"|rollout_is_veto_threshold)",
        "left out; see algo.advantage.is_correction_mode = 'mask'",
    ),
    Difference(r"algorithm\.(use_pf_ppo|pf_ppo\..*)", "PF-PPO's reweighting is not available"),
    Difference(r"async_training\.(use_rollout_log_probs|compute_prox_log_prob)", "see actor.pi_old"),
    Difference(
        r"rollout\.(total_rollout_steps|total_epochs|test_freq)",
        "see train.max_steps, train.num_episodes and eval.steps",
    ),
    Difference(
        r"trainer\.(rollout_data_dir|validation_data_dir)", "logger.trajectories = 1 keeps every response in run_dir"
    ),
    Difference(r"trainer\.default_local_dir", "checkpoints are in run_dir/ckpt", harmless=(None, False, "")),
    Difference(
        r"trainer\.(resume_mode|resume_from_path)",
        "a run goes on only when told, by --train.resume_or_start",
        harmless=(None, False, "disable"),
    ),
    Difference(r"trainer\.val_only", "use `openrlhf-tir eval`; this recipe trains"),
)


def account_for_unread(verl: VerlSettings, draft: Draft) -> list[str]:
    """Say what becomes of every override that set nothing, and return those that need nothing.

    Args:
        verl: The settings, all that set something having been read.
        draft: The finished recipe; it gets the sentences.
    """
    nothing = []
    unused = _unused_models(draft)
    for name, value in verl.unread().items():
        needs_nothing = name.startswith(unused) or _NEEDS_NOTHING.fullmatch(name)
        sentence = "" if needs_nothing else sentence_about(DIFFERENCES, name, value)
        if sentence is None:  # verl uses what is known with other methods only
            sentence = "" if name in DEFAULTS or name in NUMBERS else NO_SETTING
        if sentence:
            draft.differs(f"{name}={shown(value)}: {sentence}.")
        else:
            nothing.append(name)
    return nothing


def _unused_models(draft: Draft) -> tuple[str, ...]:
    """Return the beginnings of names that are about models which the recipe does not have."""
    unused: tuple[str, ...] = ()
    if not ESTIMATORS[draft.settings["algo.advantage.estimator"]].critic:
        unused += ("critic.", "trainer.critic_warmup")
    if draft.settings["reward.name"] != "model":
        unused += ("reward_model.model.", "reward_model.rollout.", "reward_model.max_length")
    return unused
