"""Settings that earlier versions had: each is refused with what to do instead."""

from __future__ import annotations

from .sections.envs import OF_THE_REWARD_MODEL

ROLE_RANKS = "Leave it out: the reference and the critic live on the policy's ranks. Size these with actor.{}."

REMOVED: dict[str, str] = {
    "ref.num_nodes": ROLE_RANKS.format("num_nodes"),
    "ref.num_gpus_per_node": ROLE_RANKS.format("num_gpus_per_node"),
    "critic.num_nodes": ROLE_RANKS.format("num_nodes"),
    "critic.num_gpus_per_node": ROLE_RANKS.format("num_gpus_per_node"),
    "pipeline.staleness_unit": (
        "pipeline.max_staleness counts updates. For S batches ahead of k updates each, set it to (S + 1) * k - 1."
    ),
    "pipeline.overadmit_risk": "Leave it out: it is 0.01. For no surplus at all, set pipeline.depth to a number.",
    "rollout.oversample": (
        "Leave it out: what faults leave of a group is trained, from rollout.min_valid samples on. For larger groups"
        " raise rollout.n_samples_per_prompt."
    ),
    "rollout.straggler_s": "Set rollout.group_deadline_s: it closes a group without its slowest samples as well.",
    "env.hedge_after_s": "Leave it out: a call is sent once, and again after a broken exchange, three times.",
    "data.curriculum_explore": "Leave it out: a quarter of the draws takes the prompt that was drawn longest ago.",
    "data.curriculum_half_life": "Leave it out: an outcome counts half after 8 batches.",
    "rollout.max_queue": "Leave it out: 4096 requests wait at an actor, then its endpoint answers 429.",
    "rollout.max_running": "Leave it out: it follows from vllm.max_num_seqs. Lower that one.",
    "train.max_backoff_s": "Leave it out: pauses double from 1 s up to 60 s.",
    "env.batch_wait_ms": "Leave it out: a step waits 100 ms for others to a server that prefers batches.",
    "env.capacity_timeout_s": "Leave it out: a call waits 300 s for room, or env.step_timeout_s if that is longer.",
    "env.max_batch": "Leave it out: 64 steps that wait are sent at once.",
    "env.max_retries": "Leave it out: a call whose connection broke is sent again three times.",
    "env.outage_timeout_s": "Leave it out: a new session waits 120 s while every server is down.",
    "env.reset_timeout_s": "Set env.step_timeout_s: opening a session has three times as long.",
    "eval.max_tries": "Leave it out: an evaluation that fails is tried once more.",
    "eval.timeout_s": "Leave it out: rollout.group_deadline_s ends the groups of an evaluation.",
    "pipeline.stall_timeout_s": "Leave it out: it is rollout.group_deadline_s + timeouts.learner_s (push_s if longer).",
    "reward.model_timeout_s": "Set timeouts.push_s: a reward model has half of it to answer, at most 300 s.",
    "reward.remote_retries": "Leave it out: a server that does not answer is asked again four times, as by OpenRLHF.",
    "reward.remote_timeout_s": "Set rollout.group_deadline_s: a call has a sixth of it, 180 s at least.",
    "reward.verify_deadline_s": "Set reward.verify_timeout_s: a check has twelve times its CPU time by the clock.",
    "rollout.agent_idle_s": "Set rollout.group_deadline_s: an agent may be silent for a sixth of it, and for 600 s.",
    "rollout.heartbeat_s": "Leave it out: heartbeats are 10 s apart, less with a timeouts.push_s below 200 s.",
    "rollout.unresponsive_s": "Set timeouts.push_s: an actor that is silent for half of it, at most 300 s, is lost.",
    "timeouts.broadcast_s": "Set timeouts.push_s: a bucket of a broadcast has a tenth of it, at most 60 s.",
    "timeouts.placement_s": "Set train.start_wait_s: a minute and as long is waited for room in the cluster.",
    "timeouts.progress_s": "Leave it out: an engine with requests samples a token within 600 s.",
    "rollout.agent_workers": "Set reward.workers: as many processes execute train.agent_func_path.",
    "env.budget_message": "Set it in env.options: budget_message = true.",
    "env.stateful": "Set it in env.server_options: stateful = true.",
    "filter.zero_variance": "Leave it out. To keep groups without variance, set filter.names without 'zero_variance'.",
    "rollout.max_batch": "Leave it out: 256 trajectories that wait go to the engine at once.",
    "rollout.per_request_seeds": "Set train.full_determinism_enable, which seeds every request.",
    "rollout.token_env": "Leave it out: the variable is TIR_ROLLOUT_TOKEN.",
    "env.token_env": "Leave it out: the variable is TIR_ENV_TOKEN.",
    "env.template_rewrites": "Leave it out: what was sampled is kept, and the start says what the template rewrites.",
    "vllm.packed_logprobs": "Leave it out: log-probs are packed unless vllm.engine_args names a scheduler_cls.",
    "vllm.sync_bucket_mib": "Leave it out: 512 MiB of weights are gathered and sent at a time.",
    "reward.max_failed_groups": "Leave it out: three prompts in a row that fail in user code end the run.",
    "filter.max_verifier_failures": "Leave it out: filter 'verifiers' allows 0.4 of a group, as ZeroTIR does.",
    "train.max_reissues": "Leave it out: a group is issued again five times.",
    "train.max_unused_batches": "Leave it out: eight batches in a row, and 256 groups at least, end a run.",
    "train.max_nonfinite_steps": "Leave it out: three steps in a row without a finite gradient end a run.",
    "ckpt.max_shard_size": "Leave it out: a file of an export holds 5 GB.",
    "logger.worker_logs": "Leave it out: the logs of actors and ranks are in the directory of Ray's session.",
    "train.restart_wait_s": "Leave it out: a restart by the launcher waits 900 s for what comes back with it.",
    "actor.eps_clip": (
        "Leave it out where actor.eps_clip_low_high is given, which wins. Else set that to the value twice, e.g."
        " [0.2, 0.2]."
    ),
    "actor.gradient_checkpointing_reentrant": "Leave it out: torch's newer form gives the same gradient.",
    "data.cache_dir": "Leave it out: prepared prompts are kept in openrlhf-tir of $XDG_CACHE_HOME, or of ~/.cache.",
    "data.dataloader_num_workers": "Leave it out: prompts are rendered once, by the process that reads them.",
    "data.env_key": "Leave it out if it is 'env'. Else give the column that names a row's environment that name.",
    "logger.dropped": "Leave it out: 8 dropped groups of each reason are kept. For all, set logger.trajectories to 1.",
    "logger.tensorboard": "Leave it out. Without events for TensorBoard: set logger.tensorboard_dir to 'unset'.",
    "rollout.agent_overflow": "Leave it out: an agent that gives up because the context is full has failed.",
    "train.env_mask": "Leave it out: train.env_mask_from decides. If it was false, set that to 'never'.",
    "train.max_learner_restarts": "Leave it out: ranks that died are replaced three times without a new checkpoint.",
    "train.max_user_code_failures": "Leave it out: three prompts in a row that fail in user code end the run.",
    "vllm.max_model_len": "Leave it out: an engine accepts data.max_len tokens. If it was above that, raise that one.",
    "vllm.canary_ceiling": "Leave it out: it is 0.5 nats. Where engines differ by more, set vllm.canary_tolerance.",
    "reward.offload": "Leave it out: a reward model has a GPU of its own, whose memory nobody else can use.",
    "train.enable_ema": "Set train.ema_beta, e.g. to 0.992: it switches the average on.",
    "train.env_coef": "Leave it out: a trained token of tool output weighs as much as any other.",
    "critic.epochs": "Leave it out: the critic makes train.max_epochs passes over a batch.",
    "ckpt.max_mem": "Set ckpt.max_num, the number of checkpoints that are kept.",
    "reward.env_reduce": (
        "Set it in reward.options: reduce = 'last' or 'max' (with reward.weights, in the table of 'env')."
    ),
    "filter.max_length_gap": "Set it in filter.options: max_length_gap = 500.0.",
    "filter.max_truncated": "Set it in filter.options: max_truncated = 0.5.",
    "logger.wandb.mode": "Set logger.wandb.key to 'offline', or to 'login' for the key that `wandb login` has stored.",
    "vllm.sync_delta": "Set vllm.sync_backend to 'delta' if it was true.",
    "actor.policy_loss": "Set actor.policy_loss_type to the function, 'path/file.py:function'.",
    "sft.dataset_split": "Set data.prompt_split.",
    "sft.eval_split": "Set eval.split.",
    "sft.eval_steps": "Set eval.steps.",
    "sft.max_samples": "Set data.max_samples.",
    "ckpt.disable_ds": "Set ckpt.max_num to 0 if it was true.",
}
"""Name -> remedy. Settings of [env], [reward] and [filter] are also removed from [envs.NAME]."""


REMOVED_FROM_ENVIRONMENTS = {
    f"reward.{field}": f"Set reward.{field}: all environments of a run share one reward model."
    for field in OF_THE_REWARD_MODEL
}
"""Name in [reward] of a setting that only [envs.NAME.reward] has lost -> remedy."""


def remedy(name: str) -> str | None:
    """Return what to do instead of a setting that was removed; None for any other name."""
    shared = shared_name(name)
    return REMOVED.get(shared) or (REMOVED_FROM_ENVIRONMENTS.get(shared) if shared != name else None)


def shared_name(name: str) -> str:
    """Return the name in [env], [reward] or [filter] of a setting of [envs.NAME]; any other name as it is."""
    parts = name.split(".")
    if parts[0] == "envs" and len(parts) > 2:
        own = parts[2:]
        name = ".".join(own if own[0] in ("reward", "filter") else ["env", *own])
    return name
