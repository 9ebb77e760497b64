"""Rows: which settings do nothing beside which others, and what is said of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..rules import CRITIC_FREE
from ..schema import Config


class Idle(NamedTuple):
    """`keys` do nothing where `when` holds; `why` goes on from "--key has no effect"."""

    keys: str
    when: Callable[[Config], bool]
    why: str


def _left_out(name: str) -> Callable[[Config], bool]:
    return lambda c: c.filter.names is not None and name not in c.filter.names


def _trains_by(role: str, optim: str) -> Callable[[Config], bool]:
    return lambda c: getattr(c, role).optim == optim


def _without_floor(role: str) -> Callable[[Config], bool]:
    return lambda c: getattr(c, role).lr_scheduler in ("constant", "inverse_sqrt")


NOT_WHITENED = ("rloo", "group_norm", "dr_grpo", "opo", "flash_reinforce")
GROUP_ESTIMATORS = ("reinforce_baseline", *NOT_WHITENED)
"""Ours, by what they leave unused; a test compares them with the registry, which is above this module."""
WITHOUT_OPTIONS = {"apibank", "format", "math", "remote"}
WITHOUT_FORMAT = {"env", "model", "remote"}
"""Rewards that others give. One's own may read the format."""

IDLE = [
    Idle(
        "actor.eps_clip",
        lambda c: c.actor.eps_clip_low_high is not None,
        "beside --actor.eps_clip_low_high, which sets both sides. Leave one of them out.",
    ),
    *(
        Idle(
            f"{role}.min_lr_ratio",
            _without_floor(role),
            f"with --{role}.lr_scheduler constant or inverse_sqrt. Choose linear or cosine, or leave it out.",
        )
        for role in ("actor", "critic")
    ),
    Idle(
        "algo.advantage.is_correction_mode algo.advantage.is_correction_gating algo.advantage.is_correction_threshold",
        lambda c: c.algo.advantage.is_correction_level == "off",
        "while --algo.advantage.is_correction_level is off. Set that to token or seq, or leave it out.",
    ),
    Idle(
        "algo.advantage.gamma",
        lambda c: c.algo.advantage.estimator in GROUP_ESTIMATORS,
        "with an estimator that compares whole trajectories."
        " Use --algo.advantage.estimator reinforce, or leave it out.",
    ),
    Idle(
        "algo.advantage.lambd critic.learning_rate critic.lr_scheduler critic.lr_warmup_ratio critic.min_lr_ratio"
        " critic.adam_betas critic.adam_eps critic.l2 critic.max_norm critic.optim critic.value_clip critic.updates"
        " critic.epochs critic.freezing_steps critic.save_value_network",
        lambda c: c.algo.advantage.estimator in CRITIC_FREE,
        "with an estimator that has no critic. Use --algo.advantage.estimator gae, or leave it out.",
    ),
    Idle(
        "algo.kl.estimator",
        lambda c: not c.algo.kl.init_coef,
        "while --algo.kl.init_coef is 0: there is no reference model. Set that, or leave it out.",
    ),
    Idle(
        "algo.kl.unbiased_gradient",
        lambda c: not c.algo.kl.use_loss,
        "without --algo.kl.use_loss: it is about the loss form. Set that, or leave it out.",
    ),
    Idle(
        "algo.advantage.no_std_norm",
        lambda c: c.algo.advantage.estimator in NOT_WHITENED,
        "with an estimator whose advantages are not whitened over the batch. Use reinforce_baseline, or leave it out.",
    ),
    Idle(
        "actor.eps_clip actor.eps_clip_low_high",
        lambda c: c.actor.policy_loss is None and c.actor.policy_loss_type == "pg",
        "with --actor.policy_loss_type pg, which has no ratio to clip. Leave it out.",
    ),
    Idle(
        "actor.pi_old",
        lambda c: (
            c.actor.policy_loss is None
            and c.actor.policy_loss_type == "pg"
            and c.algo.advantage.is_correction_level == "off"
        ),
        "with --actor.policy_loss_type pg, which has no ratio, and no IS correction. Leave it out.",
    ),
    Idle(
        "actor.policy_loss_options",
        lambda c: c.actor.policy_loss is None,
        "without --actor.policy_loss, the loss of one's own that is told of them. Set that, or leave it out.",
    ),
    Idle(
        "algo.advantage.options",
        lambda c: not _own(c.algo.advantage.estimator),
        "with an estimator of ours: one of one's own is told of them."
        " Name one in --algo.advantage.estimator, or leave it out.",
    ),
    Idle(
        "filter.options",
        lambda c: not any(map(_own, [*c.filter.order, c.filter.sample or ""])),
        "with filters of ours: those of one's own are told of them. Name one in --filter.names, or leave it out.",
    ),
    Idle(
        "reward.options",
        lambda c: set(c.reward.used) <= WITHOUT_OPTIONS,
        "with a reward that has none. Choose another, or leave it out.",
    ),
    Idle(
        "actor.dual_clip",
        lambda c: bool(c.actor.policy_loss) or c.actor.policy_loss_type not in ("ppo", "gspo"),
        "but with --actor.policy_loss_type ppo or gspo. Leave it out.",
    ),
    Idle(
        "actor.loss_agg_constant",
        lambda c: c.actor.loss_agg_mode != "seq-mean-token-sum-norm",
        "without --actor.loss_agg_mode seq-mean-token-sum-norm. Leave it out.",
    ),
    *(
        Idle(
            f"{role}.muon.lr {role}.muon.momentum {role}.muon.ns_steps {role}.muon.nesterov",
            _trains_by(role, "adam"),
            f"with --{role}.optim adam. Set that to muon, or leave it out.",
        )
        for role in ("actor", "critic")
    ),
    *(
        Idle(
            f"{role}.max_norm",
            _trains_by(role, "muon"),
            f"with --{role}.optim muon, whose updates have a norm of their own. Leave it out.",
        )
        for role in ("actor", "critic")
    ),
    Idle(
        "actor.gradient_checkpointing_reentrant actor.gradient_checkpointing_layers",
        lambda c: not c.actor.gradient_checkpointing_enable,
        "without --actor.gradient_checkpointing_enable. Set that, or leave it out.",
    ),
    Idle(
        "ckpt.max_num ckpt.max_mem",
        lambda c: c.ckpt.disable_ds,
        "with --ckpt.disable_ds: there are no checkpoints. Leave one of them out.",
    ),
    Idle(
        "ckpt.save_hf",
        lambda c: c.ckpt.save_steps < 1,
        "while --ckpt.save_steps is -1: no update is one of so many. Set that, or leave it out.",
    ),
    Idle("logger.tensorboard_dir", lambda c: not c.logger.tensorboard, "without --logger.tensorboard. Leave it out."),
    Idle(
        "data.rendered",
        lambda c: c.data.apply_chat_template,
        "with --data.apply_chat_template, which renders the rows' messages. Leave one of them out.",
    ),
    Idle(
        "data.chat_template_options",
        lambda c: not c.data.apply_chat_template and not c.by_agent,
        "without --data.apply_chat_template: prompts are texts. Set that, or leave it out.",
    ),
    Idle(
        "vllm.gpu_memory_utilization vllm.kv_cache_mib vllm.enforce_eager vllm.enable_prefix_caching vllm.engine_args"
        " vllm.packed_logprobs pipeline.kv_after_push",
        lambda c: c.rollout.engine == "torch",
        "with --rollout.engine torch. Use vllm, or leave it out.",
    ),
    Idle(
        "vllm.packed_logprobs",
        lambda c: "scheduler_cls" in c.vllm.engine_args,
        "with --vllm.engine_args.scheduler_cls, whose scheduler does not pack them. Leave one of them out.",
    ),
    Idle(
        "data.dataloader_num_workers",
        lambda c: not c.data.apply_chat_template,
        "without --data.apply_chat_template: a text template costs nothing. Leave it out.",
    ),
    Idle(
        "train.env_mask_from",
        lambda c: not c.train.env_mask,
        "with --train.env_mask false: tool output is trained all along. Leave it out.",
    ),
    Idle(
        "train.env_coef",
        lambda c: c.train.env_mask and c.train.env_mask_from == 0,
        "while tool output is masked (--train.env_mask). Leave it out.",
    ),
    Idle(
        "ds.lora.alpha ds.lora.target_modules ds.lora.dropout",
        lambda c: c.ds.lora.rank == 0,
        "while --ds.lora.rank is 0: all weights train. Set it, or leave it out.",
    ),
    Idle(
        "train.resume_from train.new_ledger",
        lambda c: not c.train.resume,
        "without --train.resume: the run starts anew. Set that, or leave it out.",
    ),
    Idle(
        "train.ema_beta",
        lambda c: not c.train.enable_ema,
        "without --train.enable_ema: there is no average. Set that, or leave it out.",
    ),
    Idle(
        "ds.zpg",
        lambda c: c.ds.zero_stage != 3,
        "with --ds.zero_stage 2: it partitions the weights of stage 3. Leave it out.",
    ),
    Idle(
        "ref.offload",
        lambda c: c.ds.zero_stage != 3,
        "with --ds.zero_stage 2: what is offloaded are the weights that stage 3 partitions. Leave it out.",
    ),
    Idle(
        "rollout.max_batch",
        lambda c: c.rollout.max_wait_ms == 0,
        "while --rollout.max_wait_ms is 0: nothing waits. Set that, or leave it out.",
    ),
    Idle(
        "env.max_batch",
        lambda c: c.env.batch_wait_ms == 0,
        "while --env.batch_wait_ms is 0: nothing waits. Set that, or leave it out.",
    ),
    Idle(
        "env.workers env.stateful env.server_options env.code_timeout_s",
        lambda c: c.env.url is not None,
        "with --env.url: that server was started with its own."
        " Set it there, or leave --env.url out to have a server started.",
    ),
    Idle(
        "env.workers",
        lambda c: c.env.file is not None,
        "with --env.file: the server of an environment class runs eight calls at once. Leave it out.",
    ),
    Idle(
        "env.stateful env.code_timeout_s",
        lambda c: c.env.url is None and (c.env.file is not None or _serves(c) != "python_tir"),
        "but with the environment python_tir, which runs code."
        " Set what this one has with --env.server_options, or leave it out.",
    ),
    Idle(
        "reward.env_reduce",
        lambda c: "env" not in c.reward.used,
        "without the reward 'env'. Set --reward.name env or add it to --reward.weights, or leave it out.",
    ),
    Idle(
        "reward.name",
        lambda c: bool(c.reward.weights),
        "beside --reward.weights, which say what is added up. Leave one of them out.",
    ),
    Idle(
        "reward.format",
        lambda c: set(c.reward.used) <= WITHOUT_FORMAT,
        "with rewards that do not look at the response's tags. Leave it out.",
    ),
    Idle(
        "reward.overlong_penalty_factor",
        lambda c: c.reward.overlong_buffer_len is None,
        "without --reward.overlong_buffer_len. Set that, or leave it out.",
    ),
    Idle(
        "reward.model_replicas reward.num_nodes reward.offload reward.model_timeout_s",
        lambda c: not c.reward.model_name_or_path,
        "without --reward.model_name_or_path. Set that, or leave it out.",
    ),
    Idle(
        "reward.group_options", lambda c: c.reward.group is None, "without --reward.group. Name one, or leave it out."
    ),
    *(
        Idle(
            f"filter.{setting}",
            _left_out(name),
            f"while --filter.names leaves the filter '{name}' out. Add it there, or leave it out.",
        )
        for setting, name in {
            "accuracy_range": "accuracy",
            "zero_variance": "zero_variance",
            "max_length_gap": "length_gap",
            "max_truncated": "truncated",
        }.items()
    ),
    Idle(
        "filter.reward_range",
        lambda c: "reward" not in c.filter.order,
        "unless --filter.names has 'reward'. Add it there, or leave it out.",
    ),
    Idle(
        "filter.max_verifier_failures",
        lambda c: "verifiers" not in c.filter.order,
        "unless --filter.names has 'verifiers'. Leave it out.",
    ),
    Idle(
        "rollout.agent_idle_s",
        lambda c: not c.by_agent,
        "without --rollout.agent external or --train.agent_func_path. Leave it out.",
    ),
    Idle(
        "rollout.agent_workers",
        lambda c: c.train.agent_func_path is None,
        "without --train.agent_func_path. Leave it out.",
    ),
    Idle(
        "rollout.agent_overflow",
        lambda c: c.rollout.agent != "external",
        "without --rollout.agent external. Leave it out.",
    ),
    Idle(
        "env.url env.file env.workers env.stateful",
        lambda c: c.train.agent_func_path is not None,
        "with --train.agent_func_path: the file is the environment. Leave it out.",
    ),
    Idle(
        "reward.remote_timeout_s reward.remote_retries reward.remote_batch",
        lambda c: c.reward.remote_url is None,
        "without --reward.remote_url. Leave it out.",
    ),
    Idle(
        "logger.wandb.org logger.wandb.group logger.wandb.project logger.wandb.run_name",
        lambda c: not (c.logger.wandb.key or c.logger.wandb.mode),
        "while --logger.wandb.key and --logger.wandb.mode are unset: there is no wandb run. Set the key (or env), or"
        " mode offline, or leave it out.",
    ),
    Idle(
        "eval.split eval.max_samples eval.max_tries eval.timeout_s",
        lambda c: c.eval.dataset is None,
        "without --eval.dataset. Give the held-out problems, or leave it out.",
    ),
    Idle(
        "env.max_calls env.protocol env.options env.output_max_tokens env.budget_message eval.max_calls",
        lambda c: c.by_agent,
        "with --rollout.agent external or --train.agent_func_path: the agent decides what it calls. Leave it out.",
    ),
]

ONE_ENVIRONMENT = Idle(
    "env.name env.url env.file env.server env.server_options env.stateful",
    lambda c: bool(c.envs),
    "with [envs.NAME]: each environment has its own. Give it as --envs.NAME.url and the like, or leave it out.",
)


def _own(name: str) -> bool:
    """Whether it names a file or module of the user's."""
    return ":" in name


def _serves(cfg: Config) -> str:
    return cfg.env.server or cfg.env.name
