"""verl's overrides -> a recipe that does what the command did.

    given               -> our settings, or a sentence that says what is not so here
    not given           -> verl's defaults, where this project's are others
    by name of program  -> main_ppo is synchronous; the one-step and the fully asynchronous trainers overlap

Every override ends in one of three ways: it sets something, it needs nothing here (NEEDS_NOTHING), or a sentence of
`Draft.differs` names it. None is dropped unsaid.

To take over one more override, add verl's default to DEFAULTS and read it in the function of its area (`_data`,
`_method`, ...): one that is in DEFAULTS alone is taken for one that needs nothing. NUMBERS says which must be numbers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...algorithms.advantages import ESTIMATORS as REGISTERED
from ...algorithms.losses import LOSSES as POLICY_LOSSES
from ...algorithms.losses import LossName
from ...errors import ConfigError
from ..method_summary import method_summary
from ..problems import Problems
from ..settings import attempt
from .bash_script import readable, unknowns
from .recipe_draft import Draft
from .verl_overrides import Overrides, flat, value_of
from .verl_references import resolved

DEFAULTS: dict[str, Any] = {
    "algorithm.adv_estimator": "gae",
    "algorithm.gamma": 1.0,
    "algorithm.lam": 1.0,
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.use_kl_in_reward": False,
    "algorithm.kl_penalty": "kl",
    "algorithm.kl_ctrl.type": "fixed",
    "algorithm.kl_ctrl.kl_coef": 0.001,
    "algorithm.kl_ctrl.horizon": 10000,
    "algorithm.kl_ctrl.target_kl": 0.1,
    "data.train_files": None,
    "data.val_files": None,
    "data.train_batch_size": 1024,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "data.prompt_key": "prompt",
    "data.shuffle": True,
    "actor_rollout_ref.model.path": None,
    "actor_rollout_ref.model.enable_gradient_checkpointing": True,
    "actor_rollout_ref.model.use_remove_padding": True,
    "actor_rollout_ref.model.lora_rank": 0,
    "actor_rollout_ref.model.lora_alpha": 16,
    "actor_rollout_ref.model.target_modules": "all-linear",
    "actor_rollout_ref.actor.optim.lr": 1e-6,
    "actor_rollout_ref.actor.optim.weight_decay": 0.01,
    "actor_rollout_ref.actor.optim.betas": [0.9, 0.999],
    "actor_rollout_ref.actor.optim.lr_warmup_steps": -1,
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": 0.0,
    "actor_rollout_ref.actor.optim.lr_scheduler_type": "constant",
    "actor_rollout_ref.actor.grad_clip": 1.0,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 256,
    "actor_rollout_ref.actor.ppo_epochs": 1,
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 16384,
    "actor_rollout_ref.actor.clip_ratio": 0.2,
    "actor_rollout_ref.actor.clip_ratio_c": 3.0,
    "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
    "actor_rollout_ref.actor.entropy_coeff": 0,
    "actor_rollout_ref.actor.use_kl_loss": False,
    "actor_rollout_ref.actor.kl_loss_coef": 0.001,
    "actor_rollout_ref.actor.kl_loss_type": "low_var_kl",
    "actor_rollout_ref.actor.policy_loss.loss_mode": "vanilla",
    "actor_rollout_ref.rollout.n": 1,
    "actor_rollout_ref.rollout.temperature": 1.0,
    "actor_rollout_ref.rollout.top_p": 1.0,
    "actor_rollout_ref.rollout.top_k": -1,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 2,
    "actor_rollout_ref.rollout.gpu_memory_utilization": 0.5,
    "actor_rollout_ref.rollout.multi_turn.format": "hermes",
    "actor_rollout_ref.rollout.val_kwargs.n": 1,
    "actor_rollout_ref.rollout.val_kwargs.temperature": 0,
    "actor_rollout_ref.rollout.val_kwargs.top_p": 1.0,
    "critic.optim.lr": 1e-5,
    "critic.cliprange_value": 0.5,
    "critic.grad_clip": 1.0,
    "critic.optim.weight_decay": 0.01,
    "reward_model.enable": False,
    "reward_model.reward_manager": "naive",
    "custom_reward_function.path": None,
    "custom_reward_function.name": "compute_score",
    "trainer.total_epochs": 30,
    "trainer.total_training_steps": None,
    "trainer.project_name": "verl_examples",
    "trainer.experiment_name": "gsm8k",
    "trainer.logger": ["console", "wandb"],
    "trainer.nnodes": 1,
    "trainer.n_gpus_per_node": 8,
    "trainer.save_freq": -1,
    "trainer.test_freq": -1,
    "trainer.critic_warmup": 0,
    "trainer.resume_mode": "auto",
}
"""What verl's ppo_trainer.yaml says of the overrides that are read here."""
RENAMED = {
    "reward_model.overlong_buffer": "reward_model.reward_kwargs.overlong_buffer_cfg",  # DAPO's recipe
    "reward.custom_reward_function": "custom_reward_function",  # verl 0.7 on
    "reward.reward_manager.name": "reward_model.reward_manager",
    "reward.reward_model.model_path": "reward_model.model.path",
    "reward.reward_kwargs": "reward_model.reward_kwargs",
    "reward.reward_model": "reward_model",
    "reward.sandbox_fusion": "reward_model.sandbox_fusion",
    "reward.num_workers": "reward_model.num_workers",
}
"""What other versions and recipes of verl call an override, or all below a name -> its name here."""
NUMBERS = frozenset(
    {name for name, value in DEFAULTS.items() if isinstance(value, int | float) and not isinstance(value, bool)}
    | {f"actor_rollout_ref.rollout.{name}" for name in ("max_num_seqs", "max_model_len", "max_num_batched_tokens")}
    | {f"actor_rollout_ref.rollout.multi_turn.max_{name}" for name in ("assistant_turns", "user_turns")}
    | {f"actor_rollout_ref.actor.{name}" for name in ("clip_ratio_low", "clip_ratio_high", "loss_scale_factor")}
    | {"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", "actor_rollout_ref.actor.optim.min_lr_ratio"}
    | {"actor_rollout_ref.actor.optim.clip_grad", "actor_rollout_ref.actor.ulysses_sequence_parallel_size"}
    | {"actor_rollout_ref.rollout.multi_turn.max_tool_response_length", "actor_rollout_ref.rollout.val_kwargs.top_k"}
    | {"actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu", "trainer.total_training_steps", "data.seed"}
    | {"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu", "trainer.max_actor_ckpt_to_keep"}
    | {f"critic.{name}" for name in ("ppo_epochs", "ppo_mini_batch_size", "optim.lr_warmup_steps_ratio")}
    | {"data.train_max_samples", "data.val_max_samples", "async_training.require_batches"}
    | {f"reward_model.reward_kwargs.overlong_buffer_cfg.{name}" for name in ("len", "penalty_factor")}
    | {"rollout.nnodes", "rollout.n_gpus_per_node", "algorithm.rollout_correction.rollout_is_threshold"}
)
"""The overrides that are numbers."""
ESTIMATORS = {
    "gae": "gae",
    "grpo": "group_norm",
    "grpo_vectorized": "group_norm",
    "reinforce_plus_plus": "reinforce",
    "reinforce_plus_plus_baseline": "reinforce_baseline",
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
    "opo": "opo",
}
INSTEAD = {
    "remax": ("rloo", "a baseline of the other samples in place of a greedy one"),
    "grpo_passk": ("group_norm", "every sample of a group has an advantage, not the best alone"),
    "gpg": ("dr_grpo", "the reward minus the group's mean, without GPG's factor for groups that are all alike"),
    "optimal_token_baseline": ("opo", "the optimal baseline over responses in place of one for each token"),
    "tir_optimal_token_baseline": ("opo", "the optimal baseline over responses in place of one for each token"),
}
"""verl's estimator -> the nearest of ours, and what is not the same."""
LOSSES: dict[str, LossName] = {"vanilla": "ppo", "gspo": "gspo", "cispo": "cispo", "gpg": "pg"}
AGGREGATIONS = {
    "token-mean": ("token-mean", None),
    "seq-mean-token-mean": ("seq-mean-token-mean", None),
    "seq-mean-token-sum": ("seq-mean-token-sum-norm", 1.0),
    "seq-mean-token-sum-norm": ("seq-mean-token-sum-norm", None),
}
"""verl's loss_agg_mode -> ours, with its constant."""
KL = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
SCHEDULES = {"constant": "constant", "cosine": "cosine", "linear": "linear"}
CALL_FORMATS = {"hermes": "hermes", "llama3": "llama3", "llama3_json": "llama3", "mistral": "mistral"}
_BELOW: dict[str, str] = {
    "actor_rollout_ref": "hybrid_engine nccl_timeout",
    "actor_rollout_ref.actor": (
        "strategy use_torch_compile use_dynamic_bsz ppo_micro_batch_size shuffle entropy_checkpointing data_loader_seed"
        " entropy_from_logits_with_chunking calculate_entropy checkpoint.* profiler.* use_remove_padding"
        " use_fused_kernels calculate_sum_pi_squared"
    ),
    "actor_rollout_ref.actor.fsdp_config": (
        "fsdp_size forward_prefetch use_orig_params wrap_policy.* reshard_after_forward strategy offload_policy"
        " param_offload dtype entropy_checkpointing use_torch_compile mixed_precision.*"
    ),
    "actor_rollout_ref.ref": (
        "strategy use_torch_compile entropy_checkpointing entropy_from_logits_with_chunking log_prob_use_dynamic_bsz"
        " log_prob_max_token_len_per_gpu log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu profiler.*"
        " ulysses_sequence_parallel_size fsdp_config.*"
    ),
    "actor_rollout_ref.rollout": (
        "mode dtype load_format free_cache_engine name layered_summon calculate_log_probs skip_tokenizer_init"
        " enable_chunked_prefill disable_log_stats do_sample log_prob_use_dynamic_bsz multi_stage_wake_up logprobs_mode"
        " prompt_length response_length agent.num_workers agent.default_agent_loop checkpoint_engine.* trace.*"
        " multi_turn.enable profiler.* ignore_eos prometheus.* cudagraph_capture_sizes"
    ),
    "actor_rollout_ref.model": (
        "use_fused_kernels fused_kernel_options.* use_shm enable_activation_offload tiled_mlp.* torch_dtype"
    ),
    "critic": (
        "strategy use_dynamic_bsz forward_max_token_len_per_gpu enable shuffle ppo_micro_batch_size* profiler.*"
        " ppo_max_token_len_per_gpu model.use_remove_padding model.enable_gradient_checkpointing model.fsdp_config.*"
        " ulysses_sequence_parallel_size model.tokenizer_path forward_micro_batch_size* checkpoint.* optim.betas"
    ),
    "data": (
        "return_raw_chat return_raw_input_ids return_full_prompt filter_overlong_prompts dataloader_num_workers use_shm"
        " filter_overlong_prompts_workers val_batch_size reward_fn_key tokenizer return_multi_modal_inputs"
        " validation_shuffle"
    ),
    "reward_model": (
        "micro_batch_size* use_dynamic_bsz forward_max_token_len_per_gpu use_reward_loop num_workers strategy nnodes"
        " n_gpus_per_node model.use_remove_padding model.fsdp_config.* launch_reward_fn_async rollout.* max_length"
        " enable_resource_pool reward_kwargs.overlong_buffer_cfg.log reward_kwargs.max_resp_len profiler.*"
    ),
    "trainer": (
        "balance_batch device use_legacy_worker_impl del_local_ckpt_after_load val_before_train default_hdfs_dir"
        " ray_wait_register_center_timeout max_critic_ckpt_to_keep log_val_generations profile*"
    ),
    "algorithm": "filter_groups.max_num_gen_batches",
}
NEEDS_NOTHING = (
    *(f"{prefix}.{name}" for prefix, names in _BELOW.items() for name in names.split()),
    *("hydra.*", "ray_kwargs.*", "ray_init.*", "global_profiler.*", "transfer_queue.*"),
)
"""Overrides that change nothing that is trained, or ask for what is so here in any case; `*` is any text."""
_NOTHING = re.compile("|".join(re.escape(name).replace(r"\*", ".*") for name in NEEDS_NOTHING))
SENTENCES = {
    r"actor_rollout_ref\.(actor|ref)\.megatron\..*|critic\.megatron\..*|.*\.override_transformer_config\..*": (
        "Megatron's parallelism is not available: the learner is ZeRO-3 on all ranks, and shares long sequences by"
        " ds.ring_attn_size"
    ),
    r"data\.(image_key|video_key|image_patch_size)|.*freeze_vision_tower": "pictures and videos are not supported",
    r"data\.custom_cls\..*": (
        "a data set class of the user's is not called: write its rows into a JSONL or parquet file"
    ),
    r"data\.(sampler|datagen)\..*": "rows are drawn by data.shuffle and data.curriculum",
    r"actor_rollout_ref\.model\.(external_lib|custom_chat_template|override_config\..*|tokenizer_path|hf_.*)": (
        "set it in the model's directory (config.json, chat_template.jinja)"
    ),
    r".*trust_remote_code": "code that comes with a model is not run: models must be in transformers",
    r"actor_rollout_ref\.rollout\.multi_turn\.interaction_config_path": (
        "an interaction is an environment here: write it as a class (docs/environments.md), whose replies are the"
        " user's turns"
    ),
    r"actor_rollout_ref\.rollout\.(agent\..*|custom_async_server\..*)": (
        "an agent loop of verl's is not run: write the loop as an agent that calls the policy's OpenAI endpoint"
        ' (rollout.agent = "external", docs/rollout.md)'
    ),
    r"reward_model\.sandbox_fusion\..*": (
        "code is not graded in SandboxFusion: give a reward function that calls it, or use the environment python_tir"
    ),
    r"trainer\.(rollout_data_dir|validation_data_dir)": "logger.trajectories = 1 keeps every response in run_dir",
    r"data\.gen_batch_size": "batches are filled continuously: no number of prompts is sampled at a time",
    r"actor_rollout_ref\.rollout\.over_sample_rate": "what faults leave of a group is trained (rollout.min_valid)",
    r".*\.router_replay\..*|.*enable_rollout_routing_replay": (
        "see rollout.routing_replay: the learner uses the experts that the engine returns"
    ),
    r"actor_rollout_ref\.rollout\.(data_parallel_size|expert_parallel_size|pipeline_model_parallel_size)": (
        "give it in vllm.engine_args if vLLM shall do it"
    ),
    r"actor_rollout_ref\.(model\.mtp|rollout\.mtp)\..*|.*\.mtp\..*": "multi-token prediction is not trained",
    r".*\.override_optimizer_config\..*": "not an option of DeepSpeed's Adam; see ds.adam_offload",
    r".*\.use_prefix_grouper": "see ds.share_prompts",
    r"actor_rollout_ref\.rollout\.quantization.*": "see vllm.engine_args (quantization)",
    r"algorithm\.(use_pf_ppo|pf_ppo\..*)": "PF-PPO's reweighting is not available",
}
"""Pattern of overrides that have no counterpart -> why, or what to do."""


@dataclass
class VerlRecipe:
    """What a command line of verl becomes."""

    draft: Draft
    nothing: list[str] = field(default_factory=list)
    """Overrides that need nothing here."""
    problems: list[str] = field(default_factory=list)
    """What has to be corrected before it runs."""
    summary: str = ""
    """One sentence about what it trains."""


@dataclass
class _VerlSettings:
    """The overrides, over verl's defaults. Reading one marks it, so that no other is dropped unsaid."""

    values: Mapping[str, Any]
    read: set[str] = field(default_factory=set)

    def __call__(self, name: str) -> Any:
        """Return an override's value, else verl's default."""
        self.read.add(name)
        return self.values.get(name, DEFAULTS.get(name))

    def has(self, name: str) -> bool:
        """Return True if the command gave it."""
        self.read.add(name)
        return name in self.values

    def below(self, prefix: str) -> dict[str, Any]:
        """Return the overrides below a name, without it."""
        found = {name: value for name, value in self.values.items() if name.startswith(f"{prefix}.")}
        self.read |= found.keys()
        return {name.removeprefix(f"{prefix}."): value for name, value in found.items()}


_OWN_TRAINERS = re.compile(
    r"(.*\.)?(verl\.trainer|verl\.experimental\.(one_step_off_policy|fully_async_policy|transfer_queue)"
    r"|recipe\.(dapo|one_step_off_policy|fully_async_policy|transfer_queue))\.(main_ppo|main_dapo|fully_async_main)"
    r"|main_ppo"
)
"""Programs whose method is what verl's settings say. A module of another name may compute anything."""


def import_verl(
    overrides: Overrides,
    *,
    program: str = "verl.trainer.main_ppo",
    name: str = "verl",
    directories: Sequence[Path] = (),
    sources_of: Callable[[Sequence[str]], set[str]] = lambda files: set(),
    rows_of: Callable[[Sequence[str]], int | None] = lambda files: None,
    change: Callable[[Draft], None] | None = None,
) -> VerlRecipe:
    """Return the recipe of one command line.

    Args:
        overrides: Its overrides.
        program: The module that it starts, which says whether rollout and training overlap.
        name: The script's name, for the run directory.
        directories: Where relative paths may begin, the likeliest first.
        sources_of: The `data_source`s of some files' rows, as far as the files are here.
        rows_of: The number of rows of some files; None where they are not here.
        change: What is done to the draft before it is checked.
    """
    draft = Draft()
    values = resolved({**_of_config(overrides.config, directories, draft), **overrides.values}, DEFAULTS, draft)
    for theirs, name_here in RENAMED.items():
        for key in [k for k in values if k == theirs or k.startswith(f"{theirs}.")]:
            values.setdefault(name_here + key.removeprefix(theirs), values.pop(key))
    for key in [k for k, value in values.items() if unknowns(str(value))]:
        draft.differs(
            f"{key}={readable(str(values.pop(key)))}: only a run can tell that value. Left at verl's default."
        )
    for key in [k for k in values if k in NUMBERS and not isinstance(values[k], int | float)]:
        value = values.pop(key)
        if value is not None:
            draft.differs(f"{key}={_shown(value)} is no number: left at verl's default.")
    for word in overrides.strange:
        draft.differs(f"{readable(word)}: not understood, left out.")
    for key in overrides.removed:
        deleted = [k for k in values if k == key or k.startswith(f"{key}.")]
        for name_of_value in deleted:
            values.pop(name_of_value)
        what = "what the script says of it" if deleted else "a setting of verl's own configuration"
        draft.differs(f"~{readable(key)} deletes {what}: nothing is set here for it.")
    verl = _VerlSettings(values)
    files = _data(verl, draft, directories)
    _model(verl, draft, directories)
    updates = _batches(verl, draft)
    _method(verl, draft, updates)
    _kl(verl, draft)
    _optimiser(verl, draft)
    _rollout(verl, draft)
    _tools(verl, draft, directories)
    _reward(verl, draft, directories, sources_of(files), files)
    _overlap(verl, draft, program)
    if _OWN_TRAINERS.fullmatch(program) is None:
        draft.differs(
            f"{readable(program)} is another trainer than verl's own: what its code changes in the method, the rewards"
            " or the rollout is not in the recipe, which has what the overrides say. Compare its code."
        )
    _placement(verl, draft, overlaps=draft.settings["pipeline.mode"] != "sync")
    _length(verl, draft, updates, rows_of(files))
    _outputs(verl, draft, name, updates)
    nothing = _others(verl, draft)
    if change is not None:
        change(draft)
    problems = Problems()
    cfg = attempt(None, draft.settings, problems)
    return VerlRecipe(draft, nothing, problems.lines, method_summary(cfg))


def _others(verl: _VerlSettings, draft: Draft) -> list[str]:
    """Say something of every override that nothing has read, and return those that need nothing."""
    nothing = []
    without = [] if REGISTERED[draft.settings["algo.advantage.estimator"]].critic else ["critic."]
    without += ["reward_model.model.", "reward_model.rollout."] if draft.settings["reward.name"] != "model" else []
    for key in verl.values:
        if key in verl.read:
            continue
        if key.startswith(tuple(without)) or (key == "trainer.critic_warmup" and without[:1] == ["critic."]):
            nothing.append(key)
            continue
        sentence = next((why for pattern, why in SENTENCES.items() if re.fullmatch(pattern, key)), None)
        if _NOTHING.fullmatch(key) or key in DEFAULTS or key in NUMBERS:  # the last two: of what is not used here
            nothing.append(key)
        elif sentence:
            draft.differs(f"{key}={_shown(verl.values[key])}: {sentence}.")
        else:
            draft.differs(f"{key}={_shown(verl.values[key])}: there is no such setting here; left out.")
    return nothing


def _of_config(config: Mapping[str, str], directories: Sequence[Path], draft: Draft) -> dict[str, Any]:
    """The values of a YAML file that --config-path and --config-name name, if it is on this machine."""
    name = config.get("config-name", "").removesuffix(".yaml")
    where = config.get("config-path", config.get("config-dir", ""))
    if not name or name in ("ppo_trainer", "ppo_megatron_trainer"):
        return {}
    path = found_file(os.path.join(where, f"{name}.yaml"), directories)
    if path is None:
        draft.differs(
            f"--config-name {name}: there is no {name}.yaml in {readable(where) or 'this directory'}, so what it sets"
            " is not in this recipe. Give its path, or its values as overrides."
        )
        return {}
    import yaml

    try:
        table = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise ConfigError(f"{path} is no YAML that can be read: {str(e).splitlines()[0]}. Correct it.") from None
    table = (
        {k: v for k, v in (table or {}).items() if k not in ("hydra", "defaults")} if isinstance(table, dict) else {}
    )
    # YAML 1.1, which PyYAML reads, takes 1e-6 for a text; OmegaConf, which verl reads with, for a number.
    return {key: value_of(value) if isinstance(value, str) else value for key, value in flat(table).items()}


def _data(verl: _VerlSettings, draft: Draft, directories: Sequence[Path]) -> list[str]:
    """Rows and prompts. Return the files of the training rows as the recipe names them."""
    files = _paths(verl("data.train_files"), directories)
    if files:
        draft.set("data.prompt_dataset", files if len(files) > 1 else files[0])
    else:
        draft.differs("The command names no data.train_files: set data.prompt_dataset.")
    held_out = _paths(verl("data.val_files"), directories)
    if held_out:
        draft.set("eval.dataset", ",".join(held_out))
    draft.set("data.apply_chat_template", True, "verl renders every prompt so")
    key = str(verl("data.prompt_key"))
    if key != "prompt":
        draft.set("data.input_key", key)
        draft.set("data.label_key", "reward_model.ground_truth")
    else:
        draft.set("data.row_schema", "verl")
    prompt, response = int(verl("data.max_prompt_length")), int(verl("data.max_response_length"))
    draft.set("rollout.max_new_tokens", response)
    draft.set("data.max_len", prompt + response, f"prompts of {prompt} tokens and responses of {response}")
    if verl.has("data.truncation") and verl("data.truncation") != "error":
        draft.differs(f"data.truncation={verl('data.truncation')}: prompts are never cut; longer ones are left out.")
    if not verl("data.shuffle"):
        draft.set("data.shuffle", False)
    if verl("data.seed") is not None:
        draft.set("train.seed", int(verl("data.seed")))
    for theirs, ours in (("data.train_max_samples", "data.max_samples"), ("data.val_max_samples", "eval.max_samples")):
        if verl.has(theirs) and int(verl(theirs)) > 0:
            draft.set(ours, int(verl(theirs)))
    if options := verl.below("data.apply_chat_template_kwargs"):
        draft.set("data.chat_template_options", options)
    return files


def _model(verl: _VerlSettings, draft: Draft, directories: Sequence[Path]) -> None:
    model = verl("actor_rollout_ref.model.path")
    if model:
        draft.set("actor.model_name_or_path", _paths(model, directories)[0])
    else:
        draft.differs("The command names no actor_rollout_ref.model.path: set actor.model_name_or_path.")
    draft.set(
        "actor.gradient_checkpointing_enable", bool(verl("actor_rollout_ref.model.enable_gradient_checkpointing"))
    )
    draft.set("ds.packing_samples", bool(verl("actor_rollout_ref.model.use_remove_padding")), "use_remove_padding")
    if verl("actor_rollout_ref.model.use_liger"):
        draft.set("ds.use_liger_kernel", True)
    rank = verl("actor_rollout_ref.model.lora_rank") or verl("actor_rollout_ref.model.lora.rank")
    alpha = verl("actor_rollout_ref.model.lora.alpha") or verl("actor_rollout_ref.model.lora_alpha")
    modules = verl("actor_rollout_ref.model.target_modules")
    if rank:
        draft.set("ds.lora.rank", int(rank))
        draft.set("ds.lora.alpha", int(alpha))
        draft.set("ds.lora.target_modules", modules if isinstance(modules, list) else [str(modules)])
    if verl("actor_rollout_ref.model.lora_adapter_path"):
        draft.differs("actor_rollout_ref.model.lora_adapter_path: adapters begin anew; merge the old one first.")
    if verl("actor_rollout_ref.model.exclude_modules"):
        draft.differs("actor_rollout_ref.model.exclude_modules: name those that get one in ds.lora.target_modules.")


def _batches(verl: _VerlSettings, draft: Draft) -> int:
    """Prompts, samples, mini-batches. Return the number of updates that a batch makes."""
    prompts, n = int(verl("data.train_batch_size")), int(verl("actor_rollout_ref.rollout.n"))
    mini, epochs = (
        int(verl("actor_rollout_ref.actor.ppo_mini_batch_size")),
        int(verl("actor_rollout_ref.actor.ppo_epochs")),
    )
    mini = max(1, mini)
    if prompts <= 0:  # the fully asynchronous trainer counts mini-batches
        prompts = mini * int(verl("async_training.require_batches") or 1)
    draft.set("rollout.batch_size", prompts)
    draft.set("rollout.n_samples_per_prompt", n)
    if n == 1:
        draft.set("rollout.min_valid", 1)
    if mini < prompts:
        while prompts % mini:
            mini -= 1
        if mini != int(verl("actor_rollout_ref.actor.ppo_mini_batch_size")):
            draft.differs(f"ppo_mini_batch_size does not divide train_batch_size = {prompts}: {mini} prompts are used.")
        draft.set("train.batch_size", mini * n, f"ppo_mini_batch_size = {mini} prompts of {n} samples")
    parts = prompts // min(mini, prompts)
    if epochs > 1:
        draft.set("train.max_epochs", epochs)
    micro = verl("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu")
    if micro:
        draft.set("train.micro_batch_size", int(micro))
    tokens = int(verl("actor_rollout_ref.actor.ppo_max_token_len_per_gpu"))
    draft.set("train.max_tokens_per_gpu", max(tokens, int(draft.settings["data.max_len"])))
    no_grad = verl("actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu")
    if no_grad and int(no_grad) >= int(draft.settings["data.max_len"]):
        draft.set("rollout.max_tokens_per_gpu", int(no_grad))
    no_grad_rows = verl("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu")
    verl("actor_rollout_ref.rollout.log_prob_micro_batch_size")
    if no_grad_rows:
        draft.set("rollout.micro_batch_size", int(no_grad_rows))
    return parts * epochs


def _method(verl: _VerlSettings, draft: Draft, updates: int) -> None:
    """Estimator, policy loss, clip ranges, filters."""
    theirs = str(verl("algorithm.adv_estimator"))
    ours = ESTIMATORS.get(theirs)
    if ours is None:
        ours, why = INSTEAD.get(theirs, ("group_norm", "an estimator that this project does not have"))
        draft.differs(f"algorithm.adv_estimator={theirs}: {ours} here, {why}.")
    n = int(verl("actor_rollout_ref.rollout.n"))
    if REGISTERED[ours].compares_responses and n == 1:
        draft.differs(
            f"algorithm.adv_estimator={theirs} with rollout.n = 1 compares a response with none: reinforce here."
        )
        ours = "reinforce"
    draft.set("algo.advantage.estimator", ours)
    if not verl("algorithm.norm_adv_by_std_in_grpo") and ours == "group_norm":
        draft.set("algo.advantage.no_std_norm", True, "norm_adv_by_std_in_grpo")
    if REGISTERED[ours].discounts:
        draft.set("algo.advantage.gamma", float(verl("algorithm.gamma")))
    if REGISTERED[ours].critic:
        draft.set("algo.advantage.lambd", float(verl("algorithm.lam")))
        _critic(verl, draft, updates)
    mode = str(verl("actor_rollout_ref.actor.policy_loss.loss_mode"))
    loss = LOSSES.get(mode)
    if loss is None:
        draft.differs(
            f"actor_rollout_ref.actor.policy_loss.loss_mode={mode}: PPO's clipped loss here. Another one is a function"
            " of your own, actor.policy_loss (docs/algorithms.md)."
        )
        loss = "ppo"
    draft.set("actor.policy_loss_type", loss)
    same = verl("actor_rollout_ref.actor.clip_ratio")
    low = verl("actor_rollout_ref.actor.clip_ratio_low")
    high = verl("actor_rollout_ref.actor.clip_ratio_high")
    draft.set("actor.eps_clip_low_high", [float(same if low is None else low), float(same if high is None else high)])
    dual = verl("actor_rollout_ref.actor.clip_ratio_c")
    if loss == "ppo" and dual:
        draft.set("actor.dual_clip", float(dual), "clip_ratio_c")
    theirs = str(verl("actor_rollout_ref.actor.loss_agg_mode"))
    if theirs not in AGGREGATIONS:
        draft.differs(f"actor_rollout_ref.actor.loss_agg_mode={theirs}: token-mean here.")
    aggregation, constant = AGGREGATIONS.get(theirs, ("token-mean", None))
    if aggregation in POLICY_LOSSES[loss].aggregations:
        draft.set("actor.loss_agg_mode", aggregation)
    if constant is not None or verl("actor_rollout_ref.actor.loss_scale_factor"):
        draft.set("actor.loss_agg_constant", float(verl("actor_rollout_ref.actor.loss_scale_factor") or constant or 1))
    draft.set("actor.pi_old", "learner", "verl computes the old log-probs again")
    entropy = float(verl("actor_rollout_ref.actor.entropy_coeff") or 0)
    if entropy:
        draft.set("actor.entropy_coef", entropy)
    _filters(verl, draft)
    _correction(verl, draft)


def _filters(verl: _VerlSettings, draft: Draft) -> None:
    if not verl("algorithm.filter_groups.enable"):
        verl("algorithm.filter_groups.metric")
        draft.set("filter.names", [], "verl trains every group")
        return
    metric = str(verl("algorithm.filter_groups.metric") or "acc")
    if metric == "acc":
        draft.set("filter.names", ["accuracy"], "algorithm.filter_groups: groups with some right and some wrong")
    else:
        draft.set("filter.names", ["zero_variance"], f"algorithm.filter_groups: groups whose {metric} differs")


def _correction(verl: _VerlSettings, draft: Draft) -> None:
    """verl's correction for the difference between engine and learner."""
    level = verl("algorithm.rollout_correction.rollout_is")
    threshold = verl("algorithm.rollout_correction.rollout_is_threshold")
    loss = draft.settings["actor.policy_loss_type"]
    if level in ("token", "sequence") and not POLICY_LOSSES[loss].is_corrected:
        draft.differs(f"algorithm.rollout_correction.rollout_is={level}: left out, it weighs no token of {loss}.")
    elif level in ("token", "sequence"):
        draft.set("algo.advantage.is_correction_level", "token")
        draft.set("algo.advantage.is_correction_mode", "clip")
        draft.set("algo.advantage.is_correction_threshold", [float(threshold or 2.0)])
        if level == "sequence":
            draft.differs(
                "rollout_is=sequence: the geometric mean of a response's ratios, where verl has their product."
            )
    for name in ("rollout_rs", "rollout_rs_threshold", "bypass_mode", "loss_type", "rollout_is_batch_normalize"):
        value = verl(f"algorithm.rollout_correction.{name}")
        if value not in (None, False):
            draft.differs(
                f"algorithm.rollout_correction.{name}={_shown(value)}: left out; see"
                " algo.advantage.is_correction_mode = 'mask'."
            )


def _critic(verl: _VerlSettings, draft: Draft, updates: int) -> None:
    draft.set("critic.learning_rate", float(verl("critic.optim.lr")))
    draft.set("critic.l2", float(verl("critic.optim.weight_decay")))
    draft.set("critic.adam_betas", [0.9, 0.999])
    draft.set("critic.value_clip", float(verl("critic.cliprange_value")))
    draft.set("critic.max_norm", float(verl("critic.grad_clip")))
    if verl("critic.model.path"):
        draft.set("critic.model_name_or_path", str(verl("critic.model.path")))
    if verl("critic.optim.lr_warmup_steps_ratio"):
        draft.set("critic.lr_warmup_ratio", float(verl("critic.optim.lr_warmup_steps_ratio")))
    first_batch = int(verl("trainer.critic_warmup") or 0)  # the first one, counted from 1, that trains the policy too
    if first_batch > 1:
        draft.set("critic.freezing_steps", (first_batch - 1) * updates, "before batch critic_warmup")
    if verl("critic.ppo_epochs"):
        draft.set("critic.epochs", int(verl("critic.ppo_epochs")))
    if verl("critic.ppo_mini_batch_size"):
        parts = int(draft.settings["rollout.batch_size"]) // int(verl("critic.ppo_mini_batch_size"))
        draft.set("critic.updates", max(1, parts))


def _kl(verl: _VerlSettings, draft: Draft) -> None:
    """The KL to the reference: in the loss, or in the reward."""
    verl("actor_rollout_ref.actor.kl_loss_type")
    verl("algorithm.kl_penalty")
    in_loss, in_reward = verl("actor_rollout_ref.actor.use_kl_loss"), verl("algorithm.use_kl_in_reward")
    loss_coef, reward_coef = verl("actor_rollout_ref.actor.kl_loss_coef"), verl("algorithm.kl_ctrl.kl_coef")
    kind = str(verl("actor_rollout_ref.actor.kl_loss_type")) if in_loss else str(verl("algorithm.kl_penalty"))
    for name in ("type", "target_kl", "horizon"):
        verl(f"algorithm.kl_ctrl.{name}")
    if in_loss and in_reward:
        draft.differs("A KL in the loss and one in the reward: the one in the loss is kept.")
    if not in_loss and not in_reward:
        return
    coef = float(loss_coef if in_loss else reward_coef)
    if not coef:
        return
    estimator = KL.get(kind.removesuffix("+"))
    if estimator is None:
        draft.differs(f"{kind} is no estimator of the KL here: k3.")
        estimator = "k3"
    draft.set("algo.kl.init_coef", coef)
    draft.set("algo.kl.estimator", estimator, kind)
    if in_loss:
        draft.set("algo.kl.use_loss", True)
        draft.set("algo.kl.unbiased_gradient", kind.endswith("+"), "as verl: through the formula")
    elif verl("algorithm.kl_ctrl.type") == "adaptive":
        draft.set("algo.kl.target", float(verl("algorithm.kl_ctrl.target_kl")))
        draft.set("algo.kl.horizon", int(verl("algorithm.kl_ctrl.horizon")))
    if verl("actor_rollout_ref.ref.fsdp_config.param_offload"):
        draft.set("ref.offload", True)


def _optimiser(verl: _VerlSettings, draft: Draft) -> None:
    verl("actor_rollout_ref.ref.fsdp_config.param_offload")
    prefix = "actor_rollout_ref.actor.optim"
    draft.set("actor.learning_rate", float(verl(f"{prefix}.lr")))
    draft.set("actor.l2", float(verl(f"{prefix}.weight_decay")))
    draft.set("actor.adam_betas", [float(b) for b in verl(f"{prefix}.betas")])
    clip = verl(f"{prefix}.clip_grad") if verl.has(f"{prefix}.clip_grad") else verl("actor_rollout_ref.actor.grad_clip")
    draft.set("actor.max_norm", float(clip))
    schedule = verl(f"{prefix}.warmup_style") or verl(f"{prefix}.lr_scheduler_type")
    schedule = verl(f"{prefix}.lr_decay_style") or schedule
    if str(schedule) not in SCHEDULES:
        draft.differs(f"The schedule {schedule} of the learning rate: constant here.")
    draft.set("actor.lr_scheduler", SCHEDULES.get(str(schedule), "constant"))
    if verl(f"{prefix}.min_lr_ratio") is not None:
        draft.set("actor.min_lr_ratio", float(verl(f"{prefix}.min_lr_ratio")))
    if str(verl(f"{prefix}.optimizer") or "AdamW").lower() not in ("adamw", "adam"):
        draft.differs(f"{prefix}.optimizer={verl(f'{prefix}.optimizer')}: AdamW here, or actor.optim = 'muon'.")
    if verl("actor_rollout_ref.actor.fsdp_config.optimizer_offload"):
        draft.set("ds.adam_offload", True)
    size = int(verl("actor_rollout_ref.actor.ulysses_sequence_parallel_size") or 1)
    critic = REGISTERED[draft.settings["algo.advantage.estimator"]].critic
    if size > 1 and (draft.settings.get("ds.lora.rank") or critic):
        draft.differs(
            f"ulysses_sequence_parallel_size={size}: left out, neither a critic nor LoRA has been tested on shared"
            " sequences here. Each rank needs the memory for whole ones."
        )
    elif size > 1:
        draft.set("ds.ring_attn_size", size)
        draft.set("ds.attn_implementation", "sdpa", "what shared sequences are tested with")
    dtype = verl("actor_rollout_ref.actor.fsdp_config.model_dtype")
    if dtype not in (None, "fp32", "bfloat16", "bf16"):
        draft.differs(f"actor_rollout_ref.actor.fsdp_config.model_dtype={dtype}: bf16 weights with fp32 masters here.")


def _rollout(verl: _VerlSettings, draft: Draft) -> None:
    prefix = "actor_rollout_ref.rollout"
    draft.set("rollout.temperature", float(verl(f"{prefix}.temperature")))
    draft.set("rollout.top_p", float(verl(f"{prefix}.top_p")))
    draft.set("rollout.top_k", max(0, int(verl(f"{prefix}.top_k"))))
    if verl(f"{prefix}.enforce_eager"):
        draft.set("vllm.enforce_eager", True)
    if verl(f"{prefix}.enable_prefix_caching") is False:
        draft.set("vllm.enable_prefix_caching", False)
    if verl(f"{prefix}.max_num_seqs"):
        draft.set("vllm.max_num_seqs", int(verl(f"{prefix}.max_num_seqs")))
    verl(f"{prefix}.max_model_len")  # an engine takes sequences of data.max_len, the longest that there are
    args = verl.below(f"{prefix}.engine_kwargs.vllm")
    if verl(f"{prefix}.max_num_batched_tokens"):
        args["max_num_batched_tokens"] = int(verl(f"{prefix}.max_num_batched_tokens"))
    args.pop("disable_mm_preprocessor_cache", None)
    if args:
        draft.set("vllm.engine_args", args)
    for engine in ("sglang", "trtllm"):
        if others := verl.below(f"{prefix}.engine_kwargs.{engine}"):
            draft.differs(
                f"{prefix}.engine_kwargs.{engine}: {', '.join(others)} are {engine}'s; engines are vLLM here."
            )
    n = int(verl(f"{prefix}.val_kwargs.n"))
    sampled = verl(f"{prefix}.val_kwargs.do_sample") if verl.has(f"{prefix}.val_kwargs.do_sample") else None
    temperature = float(verl(f"{prefix}.val_kwargs.temperature")) if sampled is not False else 0.0
    draft.set("eval.n_samples_per_prompt", n)
    draft.set("eval.temperature", temperature)
    draft.set("eval.top_p", float(verl(f"{prefix}.val_kwargs.top_p")))
    top_k = verl(f"{prefix}.val_kwargs.top_k")
    if top_k is not None and int(top_k) > 0:
        draft.differs(f"{prefix}.val_kwargs.top_k={top_k}: evaluations sample from all tokens of eval.top_p.")


def _tools(verl: _VerlSettings, draft: Draft, directories: Sequence[Path]) -> None:
    """verl's multi-turn settings, or no tool at all."""
    prefix = "actor_rollout_ref.rollout.multi_turn"
    config = verl(f"{prefix}.tool_config_path") or verl("data.tool_config_path")
    turns = verl(f"{prefix}.max_assistant_turns")
    users = verl(f"{prefix}.max_user_turns")
    length = verl(f"{prefix}.max_tool_response_length")
    side = verl(f"{prefix}.tool_response_truncate_side")
    style = str(verl(f"{prefix}.format"))
    for name in ("max_parallel_calls", "use_inference_chat_template", "tokenization_sanity_check_mode"):
        verl(f"{prefix}.{name}")
    if not config:
        draft.set("env.name", "echo", "no tool: the environment is never called")
        draft.set("env.protocol", "plain", "a response is one text, which the model ends")
        draft.set("env.max_calls", 0)
        if verl(f"{prefix}.enable"):
            draft.differs(f"{prefix}.enable without a tool_config_path: nothing is called.")
        return
    draft.set("env.name", "tools")
    draft.set("env.file", _paths(config, directories)[0], "verl's tool configuration, as it is")
    draft.set("env.protocol", "messages", "the model's own chat template renders calls and replies")
    if style not in CALL_FORMATS:
        draft.differs(f"{prefix}.format={style}: hermes here; env.options.calls has the others (docs/protocols.md).")
    draft.set("env.options", {"calls": CALL_FORMATS.get(style, "hermes")})
    most = [int(turns) - 1] if turns else []
    most += [int(users)] if users else []
    draft.set(
        "env.max_calls", max(1, min(most)) if most else 16, "" if most else "verl bounds them by the length alone"
    )
    if length:
        draft.set("env.output_max_tokens", max(1, int(length) // 3))
        draft.differs(f"{prefix}.max_tool_response_length={length} characters: about {int(length) // 3} tokens here.")
    if side not in (None, "left"):
        draft.differs(f"{prefix}.tool_response_truncate_side={side}: the end of a reply that is too long is cut.")


def _reward(
    verl: _VerlSettings, draft: Draft, directories: Sequence[Path], sources: set[str], files: Sequence[str]
) -> None:
    path, function = verl("custom_reward_function.path"), str(verl("custom_reward_function.name"))
    options = verl.below("custom_reward_function.reward_kwargs")
    manager = str(verl("reward_model.reward_manager"))
    model = verl("reward_model.model.path")
    verl("reward_model.model.input_tokenizer")
    buffer = "reward_model.reward_kwargs.overlong_buffer_cfg"
    enabled, length, factor = (verl(f"{buffer}.{name}") for name in ("enable", "len", "penalty_factor"))
    if path:
        draft.set("reward.name", f"{_paths(path, directories)[0]}:{function}", "verl's function, as it is")
        if options:
            draft.set("reward.options", options)
    elif verl("reward_model.enable") and model:
        draft.set("reward.name", "model")
        draft.set("reward.model_name_or_path", _paths(model, directories)[0])
    else:
        draft.set("reward.name", "verl", "verl's own rewards, by the row's data_source")
        named = " ".join([*sources, *map(str, files)]).lower()
        if not sources and not any(word in named for word in ("gsm8k", "math", "aime", "search")):
            draft.differs(
                "The command names no reward function, so verl rewards by data_source, and the rows are not here to be"
                " looked at: the check before the run says whether 'verl' knows their data_source."
            )
    if manager not in ("naive", "batch", "dapo", "prime"):
        draft.differs(f"reward_model.reward_manager={manager}: rewards are called as verl's naive manager does.")
    if enabled:
        draft.set("reward.overlong_buffer_len", float(length))
        draft.set("reward.overlong_penalty_factor", float(factor or 1.0))


def _overlap(verl: _VerlSettings, draft: Draft, program: str) -> None:
    """Whether rollout and training overlap."""
    threshold = verl("async_training.staleness_threshold")
    every = verl("async_training.trigger_parameter_sync_step")
    partial = verl("async_training.partial_rollout")
    for name in ("require_batches", "use_rollout_log_probs", "compute_prox_log_prob"):
        verl(f"async_training.{name}")
    for name in ("rollout.total_rollout_steps", "rollout.total_epochs", "rollout.test_freq"):
        verl(name)
    if "fully_async" in program:
        draft.set("pipeline.mode", "pipeline" if partial in (None, True) else "pipeline_drain")
        draft.differs(
            f"verl's fully asynchronous trainer (staleness_threshold={threshold}, trigger_parameter_sync_step={every}):"
            f" pipeline.mode = {draft.settings['pipeline.mode']!r} here, whose pipeline.max_staleness is a hard bound"
            " in updates."
        )
    elif "one_step_off" in program:
        draft.set("pipeline.mode", "one_step")
    else:
        draft.set("pipeline.mode", "sync", "verl samples, then trains")


def _placement(verl: _VerlSettings, draft: Draft, *, overlaps: bool) -> None:
    """Ranks and engines: in turns on the same GPUs, or apart where rollout and training overlap."""
    nodes, per_node = int(verl("trainer.nnodes")), int(verl("trainer.n_gpus_per_node"))
    tensor = int(verl("actor_rollout_ref.rollout.tensor_model_parallel_size"))
    share = float(verl("actor_rollout_ref.rollout.gpu_memory_utilization"))
    rollout_nodes, rollout_gpus = verl("rollout.nnodes"), verl("rollout.n_gpus_per_node")
    draft.set("actor.num_nodes", nodes)
    draft.set("actor.num_gpus_per_node", per_node)
    draft.set("vllm.gpu_memory_utilization", share)
    if overlaps:
        gpus = int(rollout_nodes or nodes) * int(rollout_gpus or per_node)
        draft.set("vllm.num_engines", max(1, gpus // tensor))
        draft.set("vllm.tensor_parallel_size", tensor)
        return
    draft.set("train.colocate_all", True, "learner and engines in turns on the same GPUs, as verl")
    draft.set("vllm.num_engines", nodes * per_node, "one beside each learner rank")
    if tensor > 1 and nodes * per_node > 1:
        draft.differs(
            f"actor_rollout_ref.rollout.tensor_model_parallel_size={tensor}: {nodes * per_node} engines of one GPU, one"
            " beside each rank. A GPU must hold all weights of the model while it samples; for a larger model leave"
            " train.colocate_all out and give engines GPUs of their own."
        )


def _length(verl: _VerlSettings, draft: Draft, updates: int, rows: int | None) -> None:
    """The number of updates, which verl counts in batches."""
    epochs, steps = int(verl("trainer.total_epochs")), verl("trainer.total_training_steps")
    draft.set("train.num_episodes", epochs)
    batches = int(steps) if steps else rows // int(draft.settings["rollout.batch_size"]) * epochs if rows else 0
    if steps:
        draft.set("train.max_steps", batches * updates, f"{batches} batches" if updates > 1 else "")
    elif batches:
        draft.set("train.max_steps", batches * updates, f"{rows} rows, {epochs} times")
    else:
        draft.set("train.max_steps", 100_000 * updates, "the run ends with the data, after train.num_episodes passes")
        if draft.settings["actor.lr_scheduler"] != "constant":
            draft.differs("The learning rate's schedule runs over train.max_steps: set it to the number of updates.")
    if updates > 1:
        draft.differs(
            f"A batch makes {updates} updates, and steps are updates here: train.max_steps, eval.steps and"
            f" ckpt.save_steps are {updates} times verl's numbers."
        )
    prefix = "actor_rollout_ref.actor.optim"
    ratio, warm = verl(f"{prefix}.lr_warmup_steps_ratio"), verl(f"{prefix}.lr_warmup_steps")
    verl(f"{prefix}.lr_decay_steps")
    if warm is not None and int(warm) > 0:
        if batches:
            # verl's schedule moves on once a batch, however many updates that makes.
            draft.set("actor.lr_warmup_ratio", min(0.99, int(warm) / batches), f"{warm} of {batches} batches")
        else:
            draft.differs(
                f"{prefix}.lr_warmup_steps={warm}: a share of train.max_steps here. Set actor.lr_warmup_ratio, and"
                " train.max_steps."
            )
    elif ratio:
        draft.set("actor.lr_warmup_ratio", float(ratio))


def _outputs(verl: _VerlSettings, draft: Draft, name: str, updates: int) -> None:
    project, experiment = str(verl("trainer.project_name")), str(verl("trainer.experiment_name"))
    named = verl.has("trainer.experiment_name")
    draft.set("run_dir", f"runs/{_file_name(experiment if named else name)}", "everything that the run writes")
    if verl("trainer.default_local_dir"):
        draft.differs(
            f"trainer.default_local_dir={_shown(verl('trainer.default_local_dir'))}: checkpoints are in run_dir/ckpt."
        )
    loggers = verl("trainer.logger")
    loggers = loggers if isinstance(loggers, list) else [loggers]
    if "tensorboard" not in loggers:
        draft.set("logger.tensorboard_dir", None)
    if "wandb" in loggers and verl.has("trainer.logger"):
        draft.set("logger.wandb.project", project)
        draft.set("logger.wandb.run_name", experiment)
        draft.differs(
            'trainer.logger wandb: set logger.wandb.key = "env" where WANDB_API_KEY is set; the recipe runs without.'
        )
    for other in (x for x in loggers if x not in ("console", "wandb", "tensorboard", None)):
        draft.differs(f"trainer.logger={other}: not available; see metrics.jsonl and report.html in run_dir.")
    for theirs, ours in (("trainer.save_freq", "ckpt.save_steps"), ("trainer.test_freq", "eval.steps")):
        every = int(verl(theirs) or -1)
        draft.set(ours, every * updates if every > 0 else -1)
    if verl("trainer.max_actor_ckpt_to_keep"):
        draft.set("ckpt.max_num", int(verl("trainer.max_actor_ckpt_to_keep")))
    mode = verl("trainer.resume_mode")
    verl("trainer.resume_from_path")
    if verl.has("trainer.resume_mode") and mode != "disable":
        draft.differs(f"trainer.resume_mode={mode}: a run goes on only when told, by --train.resume_or_start.")
    if verl("trainer.val_only"):
        draft.differs("trainer.val_only: use `openrlhf-tir eval`; this recipe trains.")
    if not draft.settings.get("eval.dataset"):
        draft.unset("eval.steps")


def _paths(value: Any, directories: Sequence[Path]) -> list[str]:
    """The files that a value names: absolute where they are on this machine, else as they are."""
    values = value if isinstance(value, list) else [value] if value else []
    return [str(found_file(str(v), directories) or os.path.expanduser(str(v))) for v in values]


def found_file(name: str, directories: Sequence[Path]) -> Path | None:
    """Return the file or directory that a path of a script names on this machine."""
    name = os.path.expanduser(name)
    for directory in (*directories, Path.cwd()):
        path = directory / name
        try:
            if path.exists():
                return path.absolute()
        except OSError:
            continue
    return None


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "_", readable(text)).strip("_") or "verl"


def _shown(value: Any) -> str:
    return readable(str(value))
