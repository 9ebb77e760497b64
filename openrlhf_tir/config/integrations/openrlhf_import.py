"""OpenRLHF's train_ppo_ray -> a recipe that does what the command did.

    flags given          -> openrlhf_flags: our settings
    flags not given      -> OpenRLHF 0.11.2's defaults, where this project's differ and they count
    OpenRLHF's own rules -> what it changes after parsing: both sides of the clip range, packing, the critic's start
    ours                 -> what cannot be so here: another value, or nothing, with a sentence

The result is one response to each prompt and no environment, in `pipeline.mode = "sync"`, unless the command had an
agent file or asked for asynchronous training.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...algorithms.advantages import ESTIMATORS
from ...algorithms.losses import LOSSES
from ..inactive import inactive_settings
from ..method_summary import method_summary
from ..openrlhf_flags import RULES, RULES_0_11_0, Becomes, Implied, Only, Refused, Same, translate
from ..problems import Problems
from ..schema import Config
from ..settings import attempt
from .openrlhf_command_flags import CommandFlags, read_flags
from .openrlhf_parsers import TRAIN_PPO_RAY, OpenRLHFFlag
from .recipe_draft import Draft, value_at

WITH_FLOOR = ("cosine_with_min_lr", "cosine_warmup_with_min_lr")
"""The schedules of transformers that end at min_lr_ratio; the others end at 0."""
SCHEDULES = (*WITH_FLOOR, "cosine", "linear", "constant", "constant_with_warmup", "inverse_sqrt", "polynomial")
NOT_BY_DEFAULT = (
    "vllm.sync_backend",  # auto works everywhere
    "ckpt.path",  # both are directories of the run here
    "ckpt.output_dir",
    "logger.wandb.project",
    "train.async_queue_size",
    "algo.dynamic_filtering_range",
    "algo.kl.horizon",
    "actor.muon.nesterov",
    "actor.muon.no_nesterov",
    "critic.muon.nesterov",
    "critic.muon.no_nesterov",
    "data.image_key",
    "ckpt.max_mem",
    "ckpt.best_metric_key",
    "local_rank",
    *(f"{role}.{name}" for role in ("ref", "critic", "reward") for name in ("num_nodes", "num_gpus_per_node")),
)
"""Flags whose default says nothing about what is trained."""
PLACEHOLDER = ("{", "<", "[", "your", "YOUR", "xxx", "XXX")


@dataclass
class Source:
    """Where a command stands."""

    name: str
    """The script's file name, or what stands for it."""
    directories: list[Path] = field(default_factory=list)
    """Where its relative paths may begin, the likeliest first."""


@dataclass
class Imported:
    """A recipe, and the configuration that it makes."""

    draft: Draft
    config: Config
    problems: list[str]
    """What would still be refused, a line each."""
    summary: str


def import_train_ppo(
    words: Sequence[str],
    source: Source,
    rows_of: Callable[[Draft], int | None] = lambda draft: None,
    change: Callable[[Draft], None] | None = None,
    is_rendered: Callable[[Draft], bool] = lambda draft: False,
) -> Imported:
    """Return the recipe of a train_ppo_ray command line.

    Args:
        words: Its flags.
        source: Where it stands.
        rows_of: Counts the rows of the recipe's data; None where they are not on this machine.
        change: What is done to the draft before it is checked.
        is_rendered: Tells whether prompts hold the special tokens of a chat template already.
    """
    flags = read_flags(words, TRAIN_PPO_RAY)
    draft = Draft()
    _openrlhf_rules(flags)
    asynchronous = "train.async_enable" in flags
    _leave_out(flags, draft)
    reward_gpus = flags.values.get("reward.num_gpus_per_node", [None])[0]
    for name, value in _translated(flags, draft).items():
        draft.set(name, value)
    set_by_command = set(draft.settings)
    _defaults(flags, draft)
    _method(flags, draft)
    _learning_rates(flags, draft)
    _placement(draft, asynchronous=asynchronous, reward_gpus=reward_gpus)
    _lengths(flags, draft)
    outputs(draft, source)
    _files(draft, source)
    _steps(draft, rows_of(draft))
    if not draft.settings.get("data.apply_chat_template") and is_rendered(draft):
        draft.set("data.rendered", True, "prompts hold special tokens of a chat template, which OpenRLHF reads as such")
    for note in flags.notes:
        draft.differs(note)
    if change is not None:
        change(draft)
    _staleness(draft)
    imported = finished(draft, set_by_command)
    if flags.flat:
        draft.differs(
            "The flags have their names of OpenRLHF 0.9 or older. What they do not say is as OpenRLHF 0.11.2 has it."
            + (" critic.value_clip is 0.5; OpenRLHF 0.8 had 0.2." if _has_critic(_estimator(draft)) else "")
        )
    return imported


def _staleness(draft: Draft) -> None:
    """Count OpenRLHF's queue of batches in updates, as pipeline.max_staleness does."""
    batches = draft.settings.get("pipeline.max_staleness")
    if batches is None:
        return
    others = {name: value for name, value in draft.settings.items() if name != "pipeline.max_staleness"}
    updates = attempt(None, others, Problems()).updates_per_batch
    if updates > 1:
        reason = f"{batches} batches ahead, each of {updates} updates"
        draft.set("pipeline.max_staleness", (int(batches) + 1) * updates - 1, reason)


def finished(draft: Draft, set_by_command: set[str]) -> Imported:
    """Return the recipe without settings that have no effect in it.

    Args:
        draft: The recipe.
        set_by_command: Settings that the imported command itself gave. Leaving one out is reported.
    """
    cfg = attempt(None, draft.settings, Problems())
    for name in [*draft.settings]:
        inactive = next(iter(inactive_settings(cfg, {name: draft.settings[name]})), None)
        if inactive is None and name not in ("run_dir",) and same(value_at(cfg, name), value_at(Config(), name)):
            if name not in set_by_command:
                draft.unset(name)
        elif inactive is not None:
            if name in set_by_command:
                draft.differs(f"{name} = {shown(draft.settings[name])}: left out, it has no effect {inactive.fact}.")
            draft.unset(name)
    problems = Problems()
    cfg = attempt(None, draft.settings, problems)
    take_checked_values(draft, cfg)
    return Imported(draft, cfg, problems.lines, method_summary(cfg))


def take_checked_values(draft: Draft, cfg: Config) -> None:
    """Write the draft's settings as the configuration holds them, and list those that are OpenRLHF's defaults."""
    for name in draft.settings:
        if name != "run_dir":  # it stays relative
            draft.settings[name] = value_at(cfg, name)
    draft.defaults = [
        f"{name} = {shown(draft.settings[name])} (this project's: {shown(value_at(Config(), name))})"
        for name in draft.settings
        if draft.why.get(name, "").startswith(DEFAULT)
    ]


DEFAULT = "OpenRLHF's default"


def same(a: Any, b: Any) -> bool:
    """Return True for equal values, a tuple being as good as a list."""
    return (list(a) if isinstance(a, tuple) else a) == (list(b) if isinstance(b, tuple) else b)


def shown(value: Any) -> str:
    """Return a value in words."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return " ".join(map(shown, value)) or "none"
    if value in (None, ""):
        return "unset"
    return f"{value:g}" if isinstance(value, float) else str(value).replace("\n", "\\n")


def _estimator(draft: Draft) -> str:
    return str(draft.settings.get("algo.advantage.estimator", "gae"))


def _has_critic(estimator: str) -> bool:
    """Return True if the estimator of this name has a critic; False for a name that nobody knows."""
    return estimator in ESTIMATORS and ESTIMATORS[estimator].critic


def _openrlhf_rules(flags: CommandFlags) -> None:
    """Do what OpenRLHF does with its arguments after it has parsed them (the end of its train_ppo_ray.py)."""
    _rules_of_method(flags)
    _rules_of_forward_passes(flags)
    _rules_of_rewards(flags)
    _rules_of_reference(flags)
    for name, (switch, reason) in SWITCHED.items():
        if switch not in flags:
            flags.drop(name, reason)
    if "eval.dataset" not in flags:
        for name in ("eval.split", "eval.temperature", "eval.n_samples_per_prompt"):
            flags.drop(name, "There is no --eval.dataset.")
        if flags.values.get("eval.steps", [-1])[0] != -1:
            flags.drop("eval.steps", "There is no --eval.dataset.")
        flags.values.pop("eval.steps", None)


SWITCHED = {
    "algo.dynamic_filtering_range": (
        "algo.dynamic_filtering_enable",
        "--algo.dynamic_filtering_enable is not given.",
    ),
    "algo.advantage.is_correction_type": (
        "algo.advantage.is_correction_enable",
        "--algo.advantage.is_correction_enable is not given.",
    ),
    "train.partial_rollout_enable": ("train.async_enable", "OpenRLHF refuses it without --train.async_enable."),
    "train.async_queue_size": ("train.async_enable", "It counts only with --train.async_enable."),
}
"""Flag -> the flag without which OpenRLHF does not read it, and the sentence about that."""


def _rules_of_method(flags: CommandFlags) -> None:
    """The clip range, the estimator's name, and flags of a critic that there is not."""
    values = flags.values
    if "actor.eps_clip_low_high" in flags:
        flags.drop("actor.eps_clip", "OpenRLHF looks at --actor.eps_clip_low_high alone where both are given.")
    elif "actor.eps_clip" in flags:
        values["actor.eps_clip_low_high"] = values["actor.eps_clip"] * 2
    values.pop("actor.eps_clip", None)
    estimator = values.get("algo.advantage.estimator", ["gae"])[0]
    if estimator == "grpo":
        flags.notes.append(
            f"{flags.text('algo.advantage.estimator')}: group_norm, OpenRLHF's name of GRPO. It would refuse this one."
        )
        estimator = "group_norm"
        values["algo.advantage.estimator"] = [estimator]
    of_critic = [name for name in values if name.startswith("critic.") and not _has_critic(estimator)]
    if of_critic:
        written = ", ".join(flags.text(name) for name in of_critic)
        flags.notes.append(
            f"{written}: left out, with the estimator {estimator} there is no critic, in OpenRLHF neither."
        )
    for name in of_critic:
        del values[name]


def _rules_of_forward_passes(flags: CommandFlags) -> None:
    """What packing goes with, and which template OpenRLHF reads."""
    values = flags.values
    packs = "ds.packing_samples" in flags or "train.dynamic_batch_enable" in flags
    if values.get("ds.ring_attn_size", [1])[0] > 1 and not packs:
        values["ds.packing_samples"] = []
        packs = True
    attention = values.get("ds.attn_implementation", ["flash_attention_2"])[0]
    if packs and "flash_attention" not in attention:
        flags.drop("ds.attn_implementation", "OpenRLHF takes flash_attention_2 where samples are packed.")
    template = values.get("data.input_template", [""])[0]
    if template and "{}" not in template:
        flags.drop("data.input_template", "It has no {} for the prompt: OpenRLHF leaves it out as well.")
    elif template and "data.apply_chat_template" in flags:
        flags.drop("data.input_template", "OpenRLHF does not read it beside --data.apply_chat_template.")


def _rules_of_rewards(flags: CommandFlags) -> None:
    """Which of several rewards OpenRLHF takes, and what is about a reward model that there is not."""
    if "train.agent_func_path" in flags:
        why = "The agent file gives the rewards: OpenRLHF does not read it beside one."
        flags.drop("reward.remote_url", why)
        flags.drop("reward.model_name_or_path", why)
    elif "reward.remote_url" in flags:
        flags.drop("reward.model_name_or_path", "OpenRLHF loads no reward model beside --reward.remote_url.")
    if "reward.model_name_or_path" not in flags:
        flags.drop("reward.normalize_enable", "It is about the scores of a reward model, and there is none.")
        flags.drop("reward.offload", "There is no reward model.")
        for name in ("reward.num_nodes", "reward.num_gpus_per_node"):
            flags.values.pop(name, None)


def _rules_of_reference(flags: CommandFlags) -> None:
    """What is about a reference model that there is not."""
    if flags.values.get("algo.kl.init_coef", [0.01])[0] == 0:
        why = "algo.kl.init_coef is 0: no reference model is loaded, here as in OpenRLHF."
        for name in ("algo.kl.use_loss", "algo.kl.target", "algo.kl.horizon", "algo.kl.estimator", "ref.offload"):
            flags.drop(name, why)
    if "algo.kl.target" not in flags:
        flags.values.pop("algo.kl.horizon", None)


def _leave_out(flags: CommandFlags, draft: Draft) -> None:
    """Leave out what is not taken over, or is at the only value that is, with what the flags' table says of it."""
    for role in ("ref", "critic"):
        _ranks_of_role(role, flags)
    for name in [*flags.values]:
        rule = RULES.get(name) or RULES_0_11_0.get(name)
        values = flags.values[name]
        if isinstance(rule, Refused):
            flags.drop(name, rule.reason)
        elif isinstance(rule, Only):
            if not (len(values) == 1 and str(values[0]) == rule.value):
                flags.drop(name, rule.reason)
            flags.values.pop(name, None)
        elif isinstance(rule, Implied):
            flags.values.pop(name)
    backend = flags.values.pop("vllm.sync_backend", None)
    if backend and backend != ["gloo"]:
        draft.differs(
            f"--vllm.sync_backend {backend[0]}: vllm.sync_backend = auto. Weights go to the engines by CUDA IPC with"
            " train.share_gpus, else through shared memory or the run's directory, which works wherever the engines"
            " are. NCCL does not work where learner and engine share a GPU; set nccl to try it where they do not."
        )
    elif backend:
        draft.set("vllm.sync_backend", "gloo")
    zero = flags.values.get("ds.zero_stage")
    if zero and zero[0] not in (2, 3):
        flags.notes.append(f"{flags.text('ds.zero_stage')}: ds.zero_stage = 2, this project shards with 2 or 3.")
        flags.values["ds.zero_stage"] = [2]


def _ranks_of_role(role: str, flags: CommandFlags) -> None:
    """Reference and critic live on the policy's ranks: their numbers say nothing here."""
    for name in ("num_nodes", "num_gpus_per_node"):
        wanted = flags.values.pop(f"{role}.{name}", None)
        there = flags.values.get(f"actor.{name}", [TRAIN_PPO_RAY[f"actor.{name}"].default])
        used = role != "ref" or flags.values.get("algo.kl.init_coef", [0.01])[0] > 0
        used = used and (role != "critic" or _has_critic(flags.values.get("algo.advantage.estimator", ["gae"])[0]))
        if wanted is not None and wanted != there and used:
            flags.notes.append(
                f"--{flags.written.get(f'{role}.{name}', f'{role}.{name}')} {wanted[0]}: left out, here the"
                f" {'reference' if role == 'ref' else 'critic'} lives on the policy's ranks (actor.{name} ="
                f" {there[0]}). Its GPUs are free: raise actor.{name} if the model does not fit."
            )


def _translated(flags: CommandFlags, draft: Draft) -> dict[str, Any]:
    """Return our settings behind the flags."""
    compat: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    for name, values in flags.values.items():
        rule = RULES.get(name) or RULES_0_11_0.get(name)
        if isinstance(rule, Same):
            ours[name] = _value(name, values)
        elif isinstance(rule, Becomes):
            compat[name] = [str(value) for value in values]
    problems = Problems()
    translated = translate(compat, ours, problems)
    for line in problems.lines:
        draft.differs(f"Left out: {line}")
    return {**{name: _plain(name, value) for name, value in translated.items()}, **ours}


def _value(name: str, values: Sequence[Any]) -> Any:
    about = TRAIN_PPO_RAY[name]
    if about.nargs == 0:
        return True
    return values[0] if about.nargs is None else list(values)


def of_default(about: OpenRLHFFlag) -> Any:
    """Return a flag's default as a value of ours: where several values may stand, a list."""
    if isinstance(about.default, tuple):
        return list(about.default)
    return [about.default] if about.nargs in ("*", "+") and not isinstance(about.default, list) else about.default


def _plain(name: str, value: Any) -> Any:
    """Return a translated value without the text form that a command line has."""
    if value in ("true", "false"):
        return value == "true"
    return value


def _defaults(flags: CommandFlags, draft: Draft) -> None:
    """OpenRLHF's defaults where the command says nothing."""
    missing: dict[str, Any] = {}
    compat: dict[str, Any] = {}
    for name, about in TRAIN_PPO_RAY.items():
        rule = RULES[name]
        if name in flags or name in NOT_BY_DEFAULT or about.default is None:
            continue
        if about.default is False and not isinstance(rule, Same):
            continue
        if isinstance(rule, Same):
            missing[name] = of_default(about)
        elif isinstance(rule, Becomes):
            default = about.default if isinstance(about.default, tuple | list) else [about.default]
            compat[name] = [str(value) for value in default]
    missing |= translate(compat, {}, Problems())
    for name, value in missing.items():
        idle = name.startswith("eval.") and "eval.dataset" not in flags
        if name not in draft.settings and not idle:
            draft.set(name, value, DEFAULT)


def _method(flags: CommandFlags, draft: Draft) -> None:
    """What is trained: estimator, environment, filters, reward, mode."""
    if "algo.advantage.estimator" not in flags:
        draft.set("algo.advantage.estimator", "gae", f"{DEFAULT}: PPO with a critic")
    estimator = _estimator(draft)
    samples = draft.settings.get("rollout.n_samples_per_prompt", 1)
    if samples == 1:
        draft.set("rollout.min_valid", 1, "a group is one response")
        if estimator in ESTIMATORS and ESTIMATORS[estimator].compares_responses:  # OpenRLHF refuses this
            draft.differs(
                f"The estimator {estimator} compares the responses of a prompt, and there is one: every advantage is 0,"
                " and OpenRLHF refuses it. Give --rollout.n_samples_per_prompt."
            )
    if not draft.settings.get("train.agent_func_path"):
        draft.set("env.name", "echo", "no tool: the environment is never called")
        draft.set("env.protocol", "plain", "a response is one text, which the model ends")
        draft.set("env.max_calls", 0)
    if "filter.names" not in draft.settings:
        draft.set("filter.names", [], "every group is trained, as in OpenRLHF without dynamic filtering")
    if "pipeline.mode" not in draft.settings:
        draft.set("pipeline.mode", "sync", "a batch is sampled, then trained, as in OpenRLHF without async_enable")
    rewards = [name for name in ("reward.remote_url", "reward.model_name_or_path") if draft.settings.get(name)]
    models = str(draft.settings.get("reward.model_name_or_path", ""))
    if "," in models:
        first = models.split(",")[0].strip()
        draft.set("reward.model_name_or_path", first)
        draft.differs(f"--reward.model_name_or_path {models}: one reward model is loaded, the first, {first}.")
    if not rewards and not draft.settings.get("train.agent_func_path"):
        unread = {"reward.remote_url", "reward.model_name_or_path", "train.agent_func_path"} & flags.unread.keys()
        draft.differs(
            f"The reward is not known (--{min(unread)}): set it before the run, or the recipe's would be this project's"
            " default, reward.name = math."
            if unread
            else "The command has no reward (--reward.remote_url, --reward.model_name_or_path or"
            " --train.agent_func_path), and OpenRLHF would fail. The recipe has this project's default, reward.name ="
            " math."
        )
    if _has_critic(estimator) and "critic.model_name_or_path" not in flags and "reward.model_name_or_path" in rewards:
        draft.set(
            "critic.model_name_or_path",
            draft.settings["reward.model_name_or_path"],
            "OpenRLHF's critic starts from the reward model",
        )
    loss = draft.settings.get("algo.kl.use_loss") and not draft.settings.get("algo.kl.unbiased_gradient")
    if loss and draft.settings.get("algo.kl.estimator", "k1") == "k1":
        draft.set("algo.kl.unbiased_gradient", True, "k1's own gradient in the loss is zero on average")
        draft.differs(
            "KL by k1 in the loss: algo.kl.unbiased_gradient = true, as the gradient of k1 itself is zero on average"
            " and would hold nothing (OpenRLHF only recommends k2 or k3)."
        )
    policy_loss = draft.settings.get("actor.policy_loss_type", "ppo")
    if policy_loss in LOSSES and not LOSSES[policy_loss].is_corrected:
        level = draft.settings.pop("algo.advantage.is_correction_level", "off")
        for name in [name for name in draft.settings if name.startswith("algo.advantage.is_correction")]:
            draft.unset(name)
        if level != "off":
            draft.differs(f"The IS correction is left out: OpenRLHF does not apply it to {policy_loss}.")
    correction = {k: v for k, v in draft.settings.items() if k.startswith("algo.advantage.is_correction_")}
    if correction.get("algo.advantage.is_correction_level", "off") == "off":
        for name in correction:
            if draft.why.get(name):
                draft.unset(name)


def _learning_rates(flags: CommandFlags, draft: Draft) -> None:
    """Schedules by transformers' names: which end at the floor, which at 0, which do not warm up."""
    for role in ("actor", "critic"):
        name = f"{role}.lr_scheduler"
        if name not in flags:
            continue
        named = str(flags.values[name][0])
        if named not in SCHEDULES and named not in ("cosine_with_restarts",):
            draft.set(name, "constant")
            draft.differs(f"--{name} {named}: constant, this project has no such schedule.")
        elif named == "constant":
            draft.set(f"{role}.lr_warmup_ratio", 0.0, "transformers' constant does not warm up")
        elif named not in WITH_FLOOR and named not in ("inverse_sqrt", "constant_with_warmup"):
            draft.set(f"{role}.min_lr_ratio", 0.0, f"{named} ends at 0, whatever OpenRLHF's min_lr_ratio is")


def _lengths(flags: CommandFlags, draft: Draft) -> None:
    """Prompt and response, and the forward pass that holds them."""
    s = draft.settings
    longest = int(s.get("data.max_len", 2048))
    if "rollout.max_new_tokens" not in flags:
        room = longest // 2 if longest < 4096 else longest - 1024
        draft.set("rollout.max_new_tokens", room, f"OpenRLHF: what the prompt leaves of {longest}")
        draft.differs(
            f"rollout.max_new_tokens is not given: OpenRLHF lets a response have what its prompt leaves of data.max_len"
            f" = {longest}. Here it is one number, {room}, and prompts longer than {longest - room} are left out:"
            " set it to data.max_len minus your longest prompt."
        )
    elif int(s["rollout.max_new_tokens"]) >= longest:
        room = max(1, longest // 2)
        draft.differs(
            f"--rollout.max_new_tokens {s['rollout.max_new_tokens']} leaves no room for a prompt in data.max_len ="
            f" {longest}: data.max_len = {int(s['rollout.max_new_tokens']) + room}."
        )
        draft.set("data.max_len", int(s["rollout.max_new_tokens"]) + room)
        longest = int(s["data.max_len"])
    ring = int(s.get("ds.ring_attn_size", 1))
    for name in ("train.max_tokens_per_gpu", "rollout.max_tokens_per_gpu"):
        held = s.get(name)
        if held is not None and longest > int(held) * ring:
            needed = -(-longest // ring)
            draft.set(name, needed, f"a sequence of data.max_len = {longest} must fit into a forward pass")
            if name in flags:
                draft.differs(
                    f"--{name} {held}: {needed}, a sequence of data.max_len = {longest}"
                    f"{f' over {ring} ranks' if ring > 1 else ''} must fit into a forward pass. OpenRLHF gives a"
                    " longer one a pass of its own."
                )
    if ring > 1:
        draft.set("ds.attn_implementation", "sdpa", "shared sequences (ds.ring_attn_size) need it")
        draft.set("ds.packing_samples", True)
        draft.differs(
            f"--ds.ring_attn_size {ring}: sequences are shared by heads (DeepSpeed's Ulysses) with"
            " ds.attn_implementation = sdpa, not by a ring of flash attention."
        )
        if s.get("ds.use_liger_kernel"):
            draft.unset("ds.use_liger_kernel")
            draft.differs("--ds.use_liger_kernel: left out, it has not been tested on shared sequences. Memory only.")
    buffer = s.get("reward.overlong_buffer_len")
    if buffer is not None and float(buffer) > float(s["rollout.max_new_tokens"]):
        draft.differs(
            f"--reward.overlong_buffer_len {buffer:g} is more than rollout.max_new_tokens = "
            f"{s['rollout.max_new_tokens']}, and OpenRLHF fails with it: left out."
        )
        draft.unset("reward.overlong_buffer_len")


def _placement(draft: Draft, *, asynchronous: bool, reward_gpus: int | None) -> None:
    """Ranks, engines and reward models, together or apart."""
    s = draft.settings
    nodes, per_node = int(s.get("actor.num_nodes", 1)), int(s.get("actor.num_gpus_per_node", 8))
    engines, tensor = int(s.get("vllm.num_engines") or 0), int(s.get("vllm.tensor_parallel_size", 1))
    if not engines:
        draft.set("vllm.num_engines", 1, "not given")
        engines = 1
    colocated = bool(s.get("train.colocate_all"))
    if colocated and asynchronous:
        draft.unset("train.colocate_all")
        draft.differs(
            "--train.colocate_all with --train.async_enable: OpenRLHF then colocates the trained models only, which"
            " here always live on the same ranks; engines have GPUs of their own, in OpenRLHF as well: left out."
        )
        colocated = False
    samples = int(s.get("rollout.batch_size", 1024)) * int(s.get("rollout.n_samples_per_prompt", 1))
    if colocated:
        if int(s.get("ds.zero_stage", 2)) != 3:
            draft.set("ds.zero_stage", 3, "train.colocate_all moves ZeRO-3's states out of the GPU")
            draft.differs(
                "--train.colocate_all: ds.zero_stage = 3, whose states can leave the GPU while engines sample."
            )
        if s.get("actor.optim") == "muon" or s.get("critic.optim") == "muon":
            draft.unset("train.colocate_all")
            colocated = False
            draft.differs(
                "--train.colocate_all with Muon: left out, DeepSpeed cannot move Muon's states. Engines need"
                f" {engines * tensor} GPUs of their own."
            )
    if colocated:
        if s.get("reward.model_name_or_path") and nodes * per_node > 1:
            left = next(n for n in range(per_node - 1 or 1, 0, -1) if samples % (nodes * n) == 0)
            draft.set("actor.num_gpus_per_node", left, "the node's other GPUs hold the reward model")
            draft.set("reward.model_replicas", max(1, per_node - left), "a GPU each")
            draft.set("reward.num_nodes", nodes)
            draft.differs(
                f"--train.colocate_all: a reward model has a GPU of its own here. Of the {per_node} GPUs of a node"
                f" {left} train and sample in turns, {max(1, per_node - left)} hold the reward model."
            )
            per_node = left
        elif s.get("reward.model_name_or_path"):
            draft.differs(
                "--train.colocate_all on one GPU: the reward model needs a second GPU here, or a server"
                " (`python -m openrlhf.cli.serve_rm`, which reward.remote_url asks)."
            )
            draft.set("reward.model_replicas", 1)
        ranks = nodes * per_node
        wanted = min(engines * tensor, ranks)
        if tensor > 1:
            draft.differs(
                f"--vllm.num_engines {engines} --vllm.tensor_parallel_size {tensor} with --train.colocate_all: {wanted}"
                " engines of one GPU, one beside each rank: an engine that shares its GPUs has one here. The responses"
                " are of the same policy; each GPU must hold all weights of the model while it samples. For a model"
                " that is too large for that, leave train.colocate_all out and give the engines GPUs of their own."
            )
        elif wanted != engines:
            draft.differs(f"--vllm.num_engines {engines}: {wanted}, one at most beside each learner rank.")
        draft.set("vllm.num_engines", wanted, "one beside each learner rank, in turns" if wanted == ranks else "")
        draft.unset("vllm.tensor_parallel_size")
    elif s.get("reward.model_name_or_path") and reward_gpus is not None:
        draft.set("reward.model_replicas", reward_gpus, "a reward model on each of the script's GPUs for it")
    if samples % (nodes * per_node):
        fewer = next(n for n in range(per_node, 0, -1) if samples % (nodes * n) == 0 or n == 1)
        draft.set("actor.num_gpus_per_node", fewer, "the samples of a batch divide over as many")
        draft.differs(
            f"actor.num_gpus_per_node = {per_node}: {fewer}, the {samples} samples of a batch are shared equally by the"
            " ranks here."
        )
        per_node = fewer
        if colocated and int(s["vllm.num_engines"]) > nodes * per_node:
            draft.set("vllm.num_engines", nodes * per_node, "one beside each learner rank, in turns")
    ranks = nodes * per_node
    sharing = int(s.get("ds.ring_attn_size", 1))
    if sharing > 1 and _has_critic(_estimator(draft)):
        draft.differs(
            f"--ds.ring_attn_size {sharing}: left out, a critic has not been tested on shared sequences here. Each rank"
            " then needs the memory for whole sequences."
        )
        draft.unset("ds.ring_attn_size")
    elif ranks % sharing:
        draft.differs(f"--ds.ring_attn_size {sharing} does not divide the {ranks} ranks: left out.")
        draft.unset("ds.ring_attn_size")
    _batches(draft, samples, max(1, ranks // int(s.get("ds.ring_attn_size", 1))))


def _batches(draft: Draft, samples: int, shards: int) -> None:
    """Updates of a batch: OpenRLHF takes parts of any size, here they are equal."""
    s = draft.settings
    size = int(s.get("train.batch_size", 128))
    if size >= samples:
        if size > samples:
            draft.differs(
                f"train.batch_size = {size} is more than the {samples} samples of a batch: one update a batch, as"
                " OpenRLHF's last, incomplete one."
            )
        draft.set("train.batch_size", samples, "one update a batch")
        return
    if samples % size == 0 and size >= shards:
        return
    fitting = [n for n in range(shards, samples + 1) if samples % n == 0]
    if not fitting:
        return
    best = min(fitting, key=lambda n: abs(math.log(n / size)))
    draft.set("train.batch_size", best, "a divisor of the samples of a batch")
    draft.differs(
        f"train.batch_size = {size} does not divide the {samples} samples of a batch: {best}. OpenRLHF leaves the last"
        " update smaller."
    )


def _steps(draft: Draft, rows: int | None) -> None:
    """The number of updates, over which the learning rate's schedule runs: OpenRLHF counts the prompts."""
    s = draft.settings
    samples = int(s.get("rollout.batch_size", 1024)) * int(s.get("rollout.n_samples_per_prompt", 1))
    size, epochs = int(s["train.batch_size"]), int(s.get("train.max_epochs", 1))
    of_batch = samples // size * epochs
    most = int(s.get("data.max_samples", 10**8))
    known = rows is not None
    rows = min(most, rows) if rows is not None else most if most < 10**8 else None
    if rows is None:
        draft.set("train.max_steps", 1000 * of_batch, "the rows are not here to be counted: correct it")
        draft.differs(
            f"OpenRLHF derives the number of updates from the rows, and they are not on this machine: train.max_steps ="
            f" {1000 * of_batch}. The run ends with the data in any case (train.num_episodes), but the learning rate's"
            " schedule is over train.max_steps: set it to rows * train.num_episodes *"
            f" {int(s.get('rollout.n_samples_per_prompt', 1))} / {size} * {epochs}."
        )
        return
    episodes = int(s.get("train.num_episodes", 1))
    steps = rows * int(s.get("rollout.n_samples_per_prompt", 1)) // size * episodes * epochs
    steps = max(1, steps // of_batch) * of_batch
    draft.set("train.max_steps", steps, f"as OpenRLHF counts: {rows} prompts, {episodes} episode{'s' * (episodes > 1)}")
    if not known:
        draft.differs(
            f"train.max_steps = {steps} is for data.max_samples = {rows} rows; if the data have fewer, lower it in"
            " proportion, as the learning rate's schedule runs over it."
        )


def outputs(draft: Draft, source: Source) -> None:
    """Directories and loggers."""
    s = draft.settings
    draft.set("run_dir", f"runs/{Path(source.name).stem}", "everything that the run writes")
    for name in ("ckpt.output_dir", "ckpt.path", "logger.tensorboard_dir"):
        if name not in s:
            continue
        path = str(s[name])
        if path.startswith("/") and not Path("/", *Path(path).parts[1:2]).is_dir():
            new = {"ckpt.output_dir": "model", "ckpt.path": "ckpt", "logger.tensorboard_dir": "tensorboard"}[name]
            draft.set(name, new, f"was {path}, which is of another machine")
            draft.differs(
                f"--{name} {path}: {new} in run_dir, as there is no {'/'.join(Path(path).parts[:2])[1:]} here."
            )
        elif not path.startswith("/"):
            draft.set(name, os.path.normpath(path), "in run_dir")
    if "logger.tensorboard_dir" not in s:
        draft.set("logger.tensorboard_dir", None, f"{DEFAULT}: TensorBoard is off")
    key = s.get("logger.wandb.key")
    if key is not None:
        if not str(key).strip() or str(key).startswith(PLACEHOLDER):
            draft.unset("logger.wandb.key")
            for name in [name for name in s if name.startswith("logger.wandb.")]:
                draft.unset(name)
            draft.differs(
                f"--logger.wandb.key {key}: left out, it is a placeholder. Export WANDB_API_KEY and set"
                ' logger.wandb.key = "env".'
            )
        else:
            draft.set("logger.wandb.key", "env", "WANDB_API_KEY: a recipe holds no secret")
            draft.differs('--logger.wandb.key: "env", a recipe holds no secret. Export WANDB_API_KEY.')
    if s.get("train.resume_or_start"):
        draft.unset("train.resume")


def _files(draft: Draft, source: Source) -> None:
    """Python files and data of the user: absolute paths, wherever the recipe lies."""
    for name in ("train.agent_func_path", "reward.remote_url", "data.prompt_dataset", "eval.dataset"):
        value = draft.settings.get(name)
        if not isinstance(value, str) or value.startswith(("http://", "https://")):
            continue
        found = [found_file(part.strip(), source) for part in value.split(",")]
        if any(found):
            parts = [str(path) if path else part for path, part in zip(found, value.split(","), strict=True)]
            draft.set(name, ",".join(parts), draft.why.get(name, ""))
        elif value.endswith(".py"):
            draft.differs(f"--{name} {value}: no such file here. Correct the path in the recipe before the run.")
    for name in ("actor.model_name_or_path", "critic.model_name_or_path", "reward.model_name_or_path"):
        value = draft.settings.get(name)
        if isinstance(value, str) and (path := found_file(value, source)):
            draft.set(name, str(path), draft.why.get(name, ""))
    if not draft.settings.get("actor.model_name_or_path"):
        draft.differs("The command names no model: set actor.model_name_or_path.")
    if not draft.settings.get("data.prompt_dataset"):
        draft.differs("The command names no prompts: set data.prompt_dataset.")


def found_file(name: str, source: Source) -> Path | None:
    """Return the file or directory that a path of the script names on this machine. A checkout that the script calls
    /openrlhf, as OpenRLHF's containers do, is looked for around the script."""
    if not name or name.startswith("~"):
        name = os.path.expanduser(name)
    below = name.removeprefix("/openrlhf/") if name.startswith("/openrlhf/") else None
    for directory in source.directories:
        for candidate in (directory / name, *([directory / below] if below else [])):
            try:
                if candidate.exists() and ("/" in name or "." in name):
                    return Path(os.path.normpath(candidate.absolute()))
            except OSError:
                return None
    return None
