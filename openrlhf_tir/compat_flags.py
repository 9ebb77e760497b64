"""OpenRLHF 0.11.2's train_ppo_ray flags: what each means here. One table; a test walks the installed parser and finds none missing.

    SAME              the same name in Config, the same meaning
    Becomes(keys)     accepted, sets these config keys
    Only(value, why)  accepted at its neutral value, refused at any other
    Implied(why)      accepted, changes nothing: it is how this system works anyway
    Refused(why)      refused with the replacement or the reason

Defaults are ours, not OpenRLHF's (zero_stage 3, clip-higher on, KL off): a flag that is not given keeps ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import ConfigError

Values = Sequence[str]


@dataclass(frozen=True)
class Same:
    pass


@dataclass(frozen=True)
class Becomes:
    """`to` maps the flag's values to config keys. A later `rank` wins where two flags set the same key."""

    to: Callable[[Values], dict[str, Any]]
    rank: int = 0


@dataclass(frozen=True)
class Only:
    value: str
    why: str


@dataclass(frozen=True)
class Implied:
    why: str


@dataclass(frozen=True)
class Refused:
    why: str


Rule = Same | Becomes | Only | Implied | Refused
SAME = Same()


def _one(key: str) -> Becomes:
    return Becomes(lambda v: {key: v[0]})


def _many(key: str) -> Becomes:
    return Becomes(lambda v: {key: list(v)}, rank=1)


def _sets(rank: int = 0, /, **keys: Any) -> Becomes:
    fixed = {k.replace("__", "."): v for k, v in keys.items()}
    return Becomes(lambda v: fixed, rank)


_SCHEDULERS = {"cosine_with_min_lr": "cosine", "constant_with_warmup": "constant"}
_KL = "No reference model is loaded: KL is off (algo.kl.init_coef = 0). Leave it out."
_CRITIC = "There is no critic. Use a critic-free --algo.advantage.estimator such as reinforce_baseline."
_REWARD_MODEL = "Rewards are functions here, not models: choose one with --reward.name."
_REWARD_SHAPE = "Reward shaping belongs to the reward function: choose one with --reward.name."
_COLOCATE = "Rollout and training overlap, so they never share GPUs. Size them with --actor.num_gpus_per_node and --vllm.num_engines."
_MUON = "Only AdamW is wired in. Use --actor.learning_rate, --actor.adam_betas and --actor.l2."
_LORA = "LoRA does not go with weight pushes yet. Train all weights."
_VLM = "Images are not supported: tasks are text."
_EMA = "EMA weights are not kept. Leave it out."
_PARALLEL = "Sequence and tensor parallel learners are not supported. Add ranks with --actor.num_gpus_per_node."

RULES: dict[str, Rule] = {
    # policy and optimiser
    **dict.fromkeys(
        (
            "actor.model_name_or_path actor.num_nodes actor.num_gpus_per_node actor.eps_clip actor.eps_clip_low_high actor.dual_clip actor.policy_loss_type "
            "actor.loss_agg_mode actor.entropy_coef actor.max_norm actor.lr_warmup_ratio actor.min_lr_ratio actor.gradient_checkpointing_enable"
        ).split(),
        SAME,
    ),
    "actor.adam.lr": _one("actor.learning_rate"),
    "actor.adam.betas": _many("actor.adam_betas"),
    "actor.adam.weight_decay": _one("actor.l2"),
    "actor.adam.eps": Only("1e-8", "Adam's eps is fixed."),
    "actor.lr_scheduler": Becomes(lambda v: {"actor.lr_scheduler": _SCHEDULERS.get(v[0], v[0])}),
    "actor.optim": Only("adam", _MUON),
    **dict.fromkeys("actor.muon.lr actor.muon.momentum actor.muon.ns_steps actor.muon.nesterov actor.muon.no_nesterov".split(), Refused(_MUON)),
    "actor.gradient_checkpointing_reentrant": Refused("The non-reentrant form is used. Set --actor.gradient_checkpointing_enable alone."),
    "actor.aux_loss_coef": Only("0", "No load-balancing loss is computed for MoE models."),
    "actor.freeze_visual_encoder": Refused(_VLM),
    # DeepSpeed
    **dict.fromkeys(
        "ds.zero_stage ds.param_dtype ds.attn_implementation ds.adam_offload ds.packing_samples ds.overlap_comm ds.zpg ds.grad_accum_dtype ds.use_liger_kernel ds.lora.rank".split(), SAME
    ),
    **dict.fromkeys("ds.lora.alpha ds.lora.target_modules ds.lora.dropout ds.load_in_4bit".split(), Refused(_LORA)),
    "ds.ring_attn_size": Only("1", _PARALLEL),
    "ds.ring_attn_head_stride": Only("1", _PARALLEL),
    "ds.tensor_parallel_size": Only("1", _PARALLEL),
    "ds.deepcompile": Refused("DeepCompile is not wired in. Leave it out."),
    "ds.enable_sleep": Refused(_COLOCATE),
    "ds.experts_implementation": Refused("transformers chooses it. Leave it out."),
    "ds.use_universal_ckpt": Refused("Checkpoints are resumed with the same number of ranks. Leave it out."),
    "ds.value_head_prefix": Refused(_CRITIC),
    "local_rank": Only("-1", "Ranks are assigned by the launcher."),
    # rollout
    **dict.fromkeys(
        "rollout.batch_size rollout.n_samples_per_prompt rollout.max_new_tokens rollout.temperature rollout.top_p".split(), SAME
    ),
    "rollout.micro_batch_size": Implied("log-probs of the rollout come from the engine, so there is no forward pass to split"),
    "rollout.max_tokens_per_gpu": Implied("log-probs of the rollout come from the engine, so there is no forward pass to split"),
    "rollout.vllm_generate_batch_size": Refused("Groups are dispatched one by one. Set how many may be under way with --pipeline.depth."),
    **dict.fromkeys(
        "vllm.num_engines vllm.tensor_parallel_size vllm.enforce_eager vllm.enable_prefix_caching vllm.gpu_memory_utilization vllm.sync_backend".split(), SAME
    ),
    "vllm.enable_sleep": Refused(_COLOCATE),
    "vllm.sync_with_ray": Refused("Weight pushes have their own transports. Choose one with --vllm.sync_backend."),
    # algorithm
    **dict.fromkeys(
        (
            "algo.advantage.estimator algo.advantage.no_std_norm algo.advantage.gamma algo.advantage.lambd algo.advantage.is_correction_level "
            "algo.advantage.is_correction_mode algo.advantage.is_correction_gating algo.advantage.is_correction_threshold algo.kl.init_coef"
        ).split(),
        SAME,
    ),
    **dict.fromkeys("algo.kl.target algo.kl.horizon algo.kl.estimator algo.kl.use_loss algo.kl.unbiased_gradient".split(), Refused(_KL)),
    "algo.dynamic_filtering_enable": _sets(filter__accuracy_range=(0.0, 1.0)),
    "algo.dynamic_filtering_range": _many("filter.accuracy_range"),
    # training
    **dict.fromkeys("train.num_episodes train.batch_size train.micro_batch_size train.max_tokens_per_gpu train.seed".split(), SAME),
    "train.async_enable": _sets(1, pipeline__mode="one_step"),
    "train.partial_rollout_enable": _sets(2, pipeline__mode="pipeline"),
    "train.async_queue_size": Only("1", "Staleness is set directly: --pipeline.mode pipeline --pipeline.max_staleness S."),
    "train.max_epochs": Only("1", "Every batch is trained once. Raise --train.num_episodes instead."),
    "train.dynamic_batch_enable": Implied("--train.max_tokens_per_gpu always bounds a forward pass"),
    "train.agent_func_path": Refused("Environments are servers: give one with --env.url, and how it is called with --env.protocol."),
    "train.full_determinism_enable": Refused("vLLM's sampling is not deterministic. --pipeline.mode sync with --train.seed comes closest."),
    "train.enable_ema": Refused(_EMA),
    "train.ema_beta": Refused(_EMA),
    **dict.fromkeys("train.colocate_all train.colocate_actor_ref train.colocate_critic_reward".split(), Refused(_COLOCATE)),
    # data and evaluation
    **dict.fromkeys(
        "data.prompt_dataset data.prompt_split data.input_key data.label_key data.input_template data.apply_chat_template data.max_samples data.max_len".split(), SAME
    ),
    "data.prompt_probs": Refused("Mix the files before training: one data set is read, in a resumable order."),
    "data.disable_fast_tokenizer": Refused("The fast tokenizer is required. Leave it out."),
    "data.dataloader_num_workers": Only("0", "Prompts are read once, at the start."),
    "data.image_key": Refused(_VLM),
    "data.max_images_per_prompt": Only("0", _VLM),
    **dict.fromkeys("eval.dataset eval.split eval.steps eval.n_samples_per_prompt eval.temperature".split(), SAME),
    # checkpoints and logs
    **dict.fromkeys("ckpt.path ckpt.save_steps ckpt.max_num ckpt.output_dir".split(), SAME),
    "ckpt.load_enable": _sets(train__resume="true"),
    "ckpt.save_hf": Implied("a HF export is always written to ckpt.output_dir at the end"),
    "ckpt.disable_ds": Refused("Resuming needs the DeepSpeed state. Use --ckpt.save_steps -1 to keep only the last checkpoint."),
    "ckpt.max_mem": Refused("Checkpoints are bounded by number: --ckpt.max_num."),
    "ckpt.best_metric_key": Only("none", "The last model is exported, not the best one."),
    **dict.fromkeys("logger.logging_steps logger.wandb.key logger.wandb.org logger.wandb.group logger.wandb.project logger.wandb.run_name".split(), SAME),
    "logger.tensorboard_dir": Refused("Event files go to the run's directory: --run-dir, with --logger.tensorboard."),
    "use_ms": Refused("ModelScope is not wired in. Download the model and give its path."),
    # models that do not exist here
    **dict.fromkeys("ref.num_nodes ref.num_gpus_per_node ref.offload".split(), Refused(_KL)),
    **dict.fromkeys("reward.num_nodes reward.num_gpus_per_node reward.model_name_or_path reward.remote_url reward.offload".split(), Refused(_REWARD_MODEL)),
    **dict.fromkeys(
        "reward.normalize_enable reward.clip_range reward.overlong_buffer_len reward.overlong_penalty_factor reward.stop_properly_penalty_coef".split(), Refused(_REWARD_SHAPE)
    ),
    **dict.fromkeys(
        (
            "critic.num_nodes critic.num_gpus_per_node critic.model_name_or_path critic.value_clip critic.freezing_steps critic.save_value_network critic.optim "
            "critic.muon.lr critic.muon.momentum critic.muon.ns_steps critic.muon.nesterov critic.muon.no_nesterov critic.adam.lr critic.adam.betas critic.adam.eps "
            "critic.adam.weight_decay critic.lr_scheduler critic.lr_warmup_ratio critic.min_lr_ratio critic.max_norm"
        ).split(),
        Refused(_CRITIC),
    ),
}


def translated() -> set[str]:
    """Names that need `translate`: everything but those that mean the same here."""
    return {name for name, rule in RULES.items() if not isinstance(rule, Same)}


def translate(given: Mapping[str, Any]) -> dict[str, Any]:
    """Config overrides behind the given OpenRLHF flags {name: value or values as text}. Raises ConfigError for a refused one."""
    out: dict[str, Any] = {}
    ranked: list[tuple[int, dict[str, Any]]] = []
    for name, given_values in given.items():
        values = [given_values] if isinstance(given_values, str) else list(given_values or ())
        match RULES[name]:
            case Refused(why):
                raise ConfigError(f"--{name} is a flag of OpenRLHF that is not taken over. {why}")
            case Only(value, why) if not _equal(values, value):
                raise ConfigError(f"--{name} {' '.join(values)} is not supported, only {value}. {why}")
            case Becomes(to, rank):
                try:
                    ranked.append((rank, to(values)))
                except IndexError:
                    raise ConfigError(f"--{name} has no value. Write --{name} VALUE.") from None
    for _, sets in sorted(ranked, key=lambda r: r[0]):
        out.update(sets)
    return out


def _equal(values: Values, neutral: str) -> bool:
    if len(values) != 1:
        return False
    try:
        return float(values[0]) == float(neutral)
    except ValueError:
        return values[0] == neutral
