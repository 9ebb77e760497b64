"""OpenRLHF's train_ppo_ray -> a recipe that does what the command did.

    openrlhf_command_flags.py   the words of the command -> flags by their names of 0.11.2
    openrlhf_rules.py           what OpenRLHF changes after parsing, and which flags it does not read
    ../openrlhf_flags.py        the flags -> our settings
    this file                   all of it, OpenRLHF's defaults where this project's are others, and the method
    openrlhf_sizes.py           lengths, placement, batches and the number of updates, as they can be here
    openrlhf_files.py           files of the user, directories of the run

The result is one response to each prompt and no environment, in `pipeline.mode = "sync"`, unless the command had an
agent file or asked for asynchronous training. What cannot be so here has another value, or none, with a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...algorithms.advantages import ESTIMATORS
from ...algorithms.losses import LOSSES
from ..catalog import value_at
from ..inactive import inactive_settings
from ..openrlhf_flags import ALL_RULES, RULES, SCHEDULERS, Becomes, Implied, Only, Refused, Same, translate
from ..problems import Problems
from ..schema import Config
from ..settings import attempt
from .openrlhf_command_flags import CommandFlags, read_flags
from .openrlhf_files import DEFAULT, Source, set_files, set_outputs
from .openrlhf_parsers import TRAIN_PPO_RAY
from .openrlhf_rules import apply_rules_of_ppo, has_critic
from .openrlhf_sizes import set_lengths, set_placement, set_steps
from .recipe_draft import Draft, Imported, checked
from .shared_settings import say_not_named, set_no_tool

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
    "train.ema_beta",
    "ckpt.best_metric_key",
    "local_rank",
    *(f"{role}.{name}" for role in ("ref", "critic", "reward") for name in ("num_nodes", "num_gpus_per_node")),
)
"""Flags whose default says nothing about what is trained."""
ENDS_AS_HERE = ("cosine_with_min_lr", "cosine_warmup_with_min_lr", "inverse_sqrt", "constant_with_warmup")
"""Schedules of transformers that end where ours do."""
ENDS_AT_ZERO = ("cosine", "cosine_with_restarts", "linear", "polynomial")
"""Schedules of transformers that end at 0, whatever OpenRLHF's min_lr_ratio is."""
REWARDS = ("train.agent_func_path", "reward.model_name_or_path", "reward.remote_url")
"""What gives a command its rewards."""


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
    apply_rules_of_ppo(flags)
    reward_gpus = flags.first("reward.num_gpus_per_node") if "reward.num_gpus_per_node" in flags else None
    _leave_out(flags, draft)
    for name, value in _translated(flags, draft).items():
        draft.set(name, value)
    set_by_command = set(draft.settings)
    _set_defaults(flags, draft)
    _set_method(flags, draft)
    _set_schedules(flags, draft)
    set_placement(draft, asynchronous="train.async_enable" in flags, reward_gpus=reward_gpus)
    set_lengths(flags, draft)
    set_outputs(draft, source)
    set_files(draft, source)
    if not draft.settings.get("data.prompt_dataset"):
        say_not_named(draft, "prompts", "data.prompt_dataset")
    set_steps(draft, rows_of(draft))
    if not draft.settings.get("data.apply_chat_template") and is_rendered(draft):
        draft.set("data.rendered", True, "prompts hold special tokens of a chat template, which OpenRLHF reads as such")
    for note in flags.notes:
        draft.differs(note)
    if change is not None:
        change(draft)
    _count_staleness_in_updates(draft)
    estimator = draft.settings["algo.advantage.estimator"]
    imported = finished(draft, set_by_command)
    if flags.flat:
        clip = " critic.value_clip is 0.5; OpenRLHF 0.8 had 0.2." if has_critic(estimator) else ""
        draft.differs(
            "The flags have their names of OpenRLHF 0.10.1 or older. What they do not say is as OpenRLHF 0.11.2 has it."
            + clip
        )
    return imported


def _leave_out(flags: CommandFlags, draft: Draft) -> None:
    """Leave out what is not taken over, or is at the only value that is, with what the flags' table says of it."""
    for role, model in (("ref", "reference"), ("critic", "critic")):
        _leave_out_ranks(role, model, flags)
    for name, values in [*flags.values.items()]:
        match ALL_RULES.get(name):
            case Refused(reason):
                flags.drop(name, reason)
            case Only(value, reason):
                flags.drop(name, "" if [*map(str, values)] == [value] else reason)
            case Implied():
                flags.drop(name)
    backend = flags.values.pop("vllm.sync_backend", None)
    if backend == ["gloo"]:
        draft.set("vllm.sync_backend", "gloo")
    elif backend:
        draft.differs(
            f"--vllm.sync_backend {backend[0]}: vllm.sync_backend = auto. Weights go to the engines by CUDA IPC with"
            " train.share_gpus, else through shared memory or the run's directory, which works wherever the engines"
            " are. NCCL does not work where learner and engine share a GPU; set nccl to try it where they do not."
        )


def _leave_out_ranks(role: str, model: str, flags: CommandFlags) -> None:
    """Leave out the ranks of a model that lives on the policy's: their number says nothing here."""
    for name in ("num_nodes", "num_gpus_per_node"):
        here = flags.first(f"actor.{name}")
        if flags.values.get(f"{role}.{name}", [here]) != [here]:
            flags.notes.append(
                f"{flags.text(f'{role}.{name}')}: left out, here the {model} lives on the policy's ranks (actor.{name}"
                f" = {here}). Its GPUs are free: raise actor.{name} if the model does not fit."
            )
        flags.drop(f"{role}.{name}")


def _translated(flags: CommandFlags, draft: Draft) -> dict[str, Any]:
    """Return our settings behind the flags."""
    theirs: dict[str, list[str]] = {}
    ours: dict[str, Any] = {}
    for name, values in flags.values.items():
        match ALL_RULES.get(name):
            case Same():
                ours[name] = flags.setting(name)
            case Becomes():
                theirs[name] = [str(value) for value in values]
    problems = Problems()
    translated = translate(theirs, ours, problems)
    for line in problems.lines:
        draft.differs(f"Left out: {line}")
    return {name: _without_text_form(value) for name, value in translated.items()} | ours


def _without_text_form(value: Any) -> Any:
    """Return a translated value with true and false as such: a command line has them as text."""
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def _set_defaults(flags: CommandFlags, draft: Draft) -> None:
    """Set OpenRLHF's defaults where the command says nothing."""
    missing: dict[str, Any] = {}
    theirs: dict[str, list[str]] = {}
    for name, about in TRAIN_PPO_RAY.items():
        if name in flags or name in NOT_BY_DEFAULT or about.default is None:
            continue
        if isinstance(RULES[name], Same):
            missing[name] = about.default_setting
        elif isinstance(RULES[name], Becomes) and about.default is not False:
            default = about.default if isinstance(about.default, tuple | list) else [about.default]
            theirs[name] = [str(value) for value in default]
    missing |= translate(theirs, {}, Problems())
    for name, value in missing.items():
        unused = name.startswith("eval.") and "eval.dataset" not in flags
        if name not in draft.settings and not unused:
            draft.set(name, value, DEFAULT)


def _set_method(flags: CommandFlags, draft: Draft) -> None:
    """Set what is trained: estimator, environment, filters, mode, rewards, KL and the correction for the engine."""
    if "algo.advantage.estimator" not in flags:
        draft.set("algo.advantage.estimator", "gae", f"{DEFAULT}: PPO with a critic")
    if draft.settings["rollout.n_samples_per_prompt"] == 1:
        draft.set("rollout.min_valid", 1, "a group is one response")
        estimator = draft.settings["algo.advantage.estimator"]
        if estimator in ESTIMATORS and ESTIMATORS[estimator].compares_responses:
            draft.differs(
                f"The estimator {estimator} compares the responses of a prompt, and there is one: every advantage is 0,"
                " and OpenRLHF refuses it. Give --rollout.n_samples_per_prompt."
            )
        if "algo.dynamic_filtering_enable" in flags:
            draft.unset("filter.names")
            draft.unset("filter.accuracy_range")
            draft.differs(
                f"{flags.text('algo.dynamic_filtering_enable')}: left out, OpenRLHF refuses it with one response to a"
                " prompt, whose accuracy is 0 or 1. Give --rollout.n_samples_per_prompt."
            )
    if not draft.settings.get("train.agent_func_path"):
        set_no_tool(draft)
    if "filter.names" not in draft.settings:
        draft.set("filter.names", [], "every group is trained, as in OpenRLHF without dynamic filtering")
    if "pipeline.mode" not in draft.settings:
        draft.set("pipeline.mode", "sync", "a batch is sampled, then trained, as in OpenRLHF without async_enable")
    _set_rewards(flags, draft)
    _set_kl_gradient(draft)
    _set_correction(draft)


def _set_rewards(flags: CommandFlags, draft: Draft) -> None:
    """Set the reward model, from which a critic starts, and say where there is no reward."""
    models = str(draft.settings.get("reward.model_name_or_path", ""))
    model = models.split(",")[0].strip() if "," in models else models
    if model != models:
        draft.set("reward.model_name_or_path", model)
        draft.differs(f"--reward.model_name_or_path {models}: one reward model is loaded, the first, {model}.")
    estimator = draft.settings["algo.advantage.estimator"]
    if model and has_critic(estimator) and "critic.model_name_or_path" not in flags:
        draft.set("critic.model_name_or_path", model, "OpenRLHF's critic starts from the reward model")
    if any(draft.settings.get(name) for name in REWARDS):
        return
    if unread := [name for name in REWARDS if name in flags.unread]:
        draft.differs(
            f"The reward is not known (--{min(unread)}): set it before the run, or the recipe's would be this project's"
            " default, reward.name = math."
        )
    else:
        draft.differs(
            "The command has no reward (--reward.remote_url, --reward.model_name_or_path or --train.agent_func_path),"
            " and OpenRLHF would fail. The recipe has this project's default, reward.name = math."
        )


def _set_kl_gradient(draft: Draft) -> None:
    """Take k1 in the loss with a gradient that is not zero on average."""
    settings = draft.settings
    in_loss = settings.get("algo.kl.use_loss") and not settings.get("algo.kl.unbiased_gradient")
    if in_loss and settings["algo.kl.estimator"] == "k1":
        draft.set("algo.kl.unbiased_gradient", True, "k1's own gradient in the loss is zero on average")
        draft.differs(
            "KL by k1 in the loss: algo.kl.unbiased_gradient = true, as the gradient of k1 itself is zero on average"
            " and would hold nothing (OpenRLHF only recommends k2 or k3)."
        )


def _set_correction(draft: Draft) -> None:
    """Leave out the correction for the difference between engine and learner where it is off or weighs nothing."""
    names = [name for name in draft.settings if name.startswith("algo.advantage.is_correction_")]
    level = draft.settings.get("algo.advantage.is_correction_level", "off")
    loss = draft.settings["actor.policy_loss_type"]
    if loss in LOSSES and not LOSSES[loss].is_corrected:
        for name in names:
            draft.unset(name)
        if level != "off":
            draft.differs(f"The IS correction is left out: OpenRLHF does not apply it to {loss}.")
    elif level == "off":
        for name in names:
            if draft.why.get(name) == DEFAULT:
                draft.unset(name)


def _set_schedules(flags: CommandFlags, draft: Draft) -> None:
    for role in ("actor", "critic"):
        name = f"{role}.lr_scheduler"
        if name in flags:
            set_schedule(draft, role, flags.first(name), flags.text(name))


def set_schedule(draft: Draft, section: str, schedule: str, flag: str) -> None:
    """Set a schedule of transformers: whether it warms up, and where it ends.

    Args:
        draft: The recipe.
        section: The section that has the settings of the schedule.
        schedule: Its name in transformers.
        flag: The flag as the script wrote it.
    """
    if schedule not in (*ENDS_AS_HERE, *ENDS_AT_ZERO, "constant"):
        draft.set(f"{section}.lr_scheduler", "constant")
        draft.differs(f"{flag}: constant, this project has no such schedule.")
        return
    draft.set(f"{section}.lr_scheduler", SCHEDULERS.get(schedule, schedule))
    if schedule == "constant":
        draft.set(f"{section}.lr_warmup_ratio", 0.0, "transformers' constant does not warm up")
    elif schedule not in ENDS_AS_HERE:
        draft.set(f"{section}.min_lr_ratio", 0.0, f"{schedule} ends at 0, whatever OpenRLHF's min_lr_ratio is")


def _count_staleness_in_updates(draft: Draft) -> None:
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
    """Return the recipe without settings that have no effect in it, or are this project's defaults.

    Args:
        draft: The recipe.
        set_by_command: Settings that the imported command itself gave. Leaving one out is reported; one that repeats a
            default stays.
    """
    cfg = attempt(None, draft.settings, Problems())
    default = Config()
    facts: dict[str, str] = {}
    for setting in inactive_settings(cfg, draft.settings):
        facts.setdefault(setting.name, setting.fact)
    for name, value in [*draft.settings.items()]:
        given = name in set_by_command
        if name in facts:
            if given:
                draft.differs(f"{name} = {shown(value)}: left out, it has no effect {facts[name]}.")
            draft.unset(name)
        elif name != "run_dir" and not given and same(value_at(cfg, name), value_at(default, name)):
            draft.unset(name)
    imported = checked(draft)
    take_checked_values(draft, imported.config)
    return imported


def take_checked_values(draft: Draft, cfg: Config) -> None:
    """Write the draft's settings as the configuration holds them, and list those that are OpenRLHF's defaults."""
    default = Config()
    for name in draft.settings:
        if name != "run_dir":  # it stays relative
            draft.settings[name] = value_at(cfg, name)
    draft.defaults = [
        f"{name} = {shown(value)} (this project's: {shown(value_at(default, name))})"
        for name, value in draft.settings.items()
        if draft.why.get(name, "").startswith(DEFAULT)
    ]


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
