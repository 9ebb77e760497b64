"""OpenRLHF's train_sft -> a recipe of `openrlhf-tir sft` that does what the command did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..catalog import value_at
from ..fine_tuning import NAMES, USED
from ..openrlhf_flags import RULES, SCHEDULERS, Refused
from ..schema import Config
from .openrlhf_command_flags import CommandFlags, read_flags
from .openrlhf_files import DEFAULT, IN_RUN_DIR, Source, set_files, set_outputs
from .openrlhf_import import same, set_schedule, take_checked_values
from .openrlhf_parsers import TRAIN_SFT
from .openrlhf_rules import apply_rules_of_sft
from .recipe_draft import Draft, Imported, checked_fine_tuning
from .script_call import Devices
from .shared_settings import say_not_named

LEFT_OUT = {
    "model.pretrain_mode_enable": (
        "`openrlhf-tir sft` learns all of a row that has a column `text`: name the data so, or use sft.input_key."
    ),
    "model.aux_loss_coef": "The loss that balances the experts of a mixture is a setting of RL only.",
    "data.dataset_probs": "Several data sets are read as one.",
    "data.tokenizer_chat_template": "Write the template into the model's directory, as chat_template.jinja.",
    "optim": "`openrlhf-tir sft` has Adam only.",
}
"""Flags that fine-tuning here does not have -> what to do."""
NEEDS_NOTHING = ("local_rank", "ds.use_universal_ckpt", "ds.ring_attn_head_stride", "ckpt.max_mem")
NOT_BY_DEFAULT = ("ckpt.load_enable", *IN_RUN_DIR)
"""Flags whose default says nothing about what is trained."""


def import_train_sft(
    words: Sequence[str],
    source: Source,
    devices: Devices | None,
    change: Callable[[Draft], None] | None,
) -> Imported:
    """Return the recipe of a train_sft command line.

    Args:
        words: Its flags.
        source: Where it stands.
        devices: The GPUs that its launcher was told of; None where only its machine knows them.
        change: What is done to the draft before it is checked.
    """
    flags = read_flags(words, TRAIN_SFT, sft=True)
    draft = Draft()
    is_chat = "data.apply_chat_template" in flags
    apply_rules_of_sft(flags)
    given = set(flags.values)
    _set_given(flags, draft)
    _set_defaults(given, draft, is_chat=is_chat)
    if devices is not None:
        draft.set("actor.num_gpus_per_node", devices.per_node, "the launcher's")
        if devices.nodes > 1:
            draft.set("actor.num_nodes", devices.nodes, "the launcher's")
    else:
        draft.differs(
            "The launcher is told no number of GPUs, so it takes all that it finds: set actor.num_gpus_per_node to it"
            " where that is not 8, and actor.num_nodes where there are several nodes."
        )
    set_files(draft, source)
    if not draft.settings.get("sft.dataset"):
        say_not_named(draft, "data", "sft.dataset")
    set_outputs(draft, source)
    for note in flags.notes:
        draft.differs(note)
    if change is not None:
        change(draft)
    return _finished(draft)


def _set_given(flags: CommandFlags, draft: Draft) -> None:
    """Set what the command gives, and leave out what fine-tuning here does not have."""
    for name in [name for name in TRAIN_SFT if name in flags]:
        rule = RULES.get(name)
        reason = rule.reason if isinstance(rule, Refused) else LEFT_OUT.get(name)
        if reason is not None:
            flags.drop(name, reason)
        elif name == "ckpt.load_enable":
            draft.set("train.resume_or_start", True, "--ckpt.load_enable")
        elif (setting := _setting_of(name)) is not None:
            if name == "lr_scheduler":
                set_schedule(draft, "sft", flags.setting(name), flags.text(name))
            else:
                draft.set(setting, flags.setting(name))
        elif name not in NEEDS_NOTHING:
            flags.drop(name, "Fine-tuning here has nothing of the kind.")


def _set_defaults(given: set[str], draft: Draft, *, is_chat: bool) -> None:
    """Set OpenRLHF's defaults of what the command does not give.

    Args:
        given: The flags that the command gives.
        draft: The recipe with their settings.
        is_chat: True if a chat template renders the rows: OpenRLHF then reads no template of the command.
    """
    for name, about in TRAIN_SFT.items():
        setting = _setting_of(name)
        if name in given or name in NOT_BY_DEFAULT or name.startswith(("eval.", "logger.wandb.")):
            continue
        if setting is None or setting in draft.settings or about.default is None:
            continue
        if name == "data.input_template" and is_chat:
            continue
        draft.set(setting, _value_here(setting, about.default_setting), DEFAULT)


def _setting_of(name: str) -> str | None:
    """Return the setting of a flag; None where fine-tuning here has none."""
    setting = NAMES.get(name, name)
    return setting if setting in USED and name not in NEEDS_NOTHING else None


def _value_here(setting: str, value: Any) -> Any:
    """Return a flag's value as its setting has it: a schedule by our name."""
    return SCHEDULERS.get(value, value) if setting == "sft.lr_scheduler" else value


def _finished(draft: Draft) -> Imported:
    for name in [*draft.settings]:
        default = value_at(Config(), name)
        if draft.why.get(name) == DEFAULT and same(draft.settings[name], default):
            draft.unset(name)
    if not draft.settings.get("sft.input_key"):
        draft.differs("The command has no --data.input_key: OpenRLHF reads the column `input`.")
    imported = checked_fine_tuning(draft)
    take_checked_values(draft, imported.config)
    return imported
