"""OpenRLHF's train_sft -> a recipe of `openrlhf-tir sft` that does what the command did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..fine_tuning import NAMES, RANKS_OF, USED, alone
from ..openrlhf_flags import RULES, SCHEDULERS, Becomes, Refused
from ..problems import Problems
from ..rules import violations_of_fine_tuning
from ..schema import Config
from ..settings import attempt
from .openrlhf_command_flags import CommandFlags, read_flags
from .openrlhf_import import (
    DEFAULT,
    WITH_FLOOR,
    Imported,
    Source,
    found_file,
    of_default,
    outputs,
    same,
    shown,
    take_checked_values,
)
from .openrlhf_parsers import TRAIN_SFT
from .recipe_draft import Draft, value_at

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


def import_train_sft(
    words: Sequence[str],
    source: Source,
    gpus: int | None = None,
    change: Callable[[Draft], None] | None = None,
) -> Imported:
    """Return the recipe of a train_sft command line.

    Args:
        words: Its flags.
        source: Where it stands.
        gpus: The GPUs of a node that its launcher was told of.
        change: What is done to the draft before it is checked.
    """
    flags = read_flags(words, TRAIN_SFT, sft=True)
    draft = Draft()
    _openrlhf_rules(flags)
    _settings(flags, draft)
    if gpus:
        draft.set("actor.num_gpus_per_node", gpus, "the launcher's")
    else:
        draft.differs(
            "The launcher is told no number of GPUs, so it takes all that it finds: set actor.num_gpus_per_node to it"
            " where that is not 8."
        )
    dataset = draft.settings.get("sft.dataset")
    if isinstance(dataset, str):
        parts = [part.strip() for part in dataset.split(",")]
        draft.set("sft.dataset", ",".join(str(found_file(part, source) or part) for part in parts))
    else:
        draft.differs("The command names no data: set sft.dataset.")
    model = draft.settings.get("actor.model_name_or_path")
    if model is None:
        draft.differs("The command names no model: set actor.model_name_or_path.")
    elif there := found_file(str(model), source):
        draft.set("actor.model_name_or_path", str(there))
    outputs(draft, source)
    for note in flags.notes:
        draft.differs(note)
    if change is not None:
        change(draft)
    return _finished(draft)


def _openrlhf_rules(flags: CommandFlags) -> None:
    values = flags.values
    attention = values.get("ds.attn_implementation", ["flash_attention_2"])[0]
    if "ds.packing_samples" in flags and "flash_attention" not in attention:
        flags.drop("ds.attn_implementation", "OpenRLHF takes flash_attention_2 where samples are packed.")
    template = values.get("data.input_template", [""])[0]
    if template and "{}" not in template:
        flags.drop("data.input_template", "It has no {} for the prompt: OpenRLHF leaves it out as well.")
    if values.get("optim") == ["adam"]:
        values.pop("optim")
    if "eval.dataset" not in flags:
        flags.drop("eval.split", "There is no --eval.dataset.")
        values.pop("eval.steps", None)
    zero = values.get("ds.zero_stage")
    if zero and zero[0] not in (2, 3):
        flags.notes.append(f"{flags.text('ds.zero_stage')}: ds.zero_stage = 2, this project shards with 2 or 3.")
        values["ds.zero_stage"] = [2]
    size = int(values.get("ds.ring_attn_size", [1])[0])
    if size > 1:
        values["ds.attn_implementation"] = ["sdpa"]
        flags.notes.append(
            f"--ds.ring_attn_size {size}: sequences are shared by heads (DeepSpeed's Ulysses) with"
            " ds.attn_implementation = sdpa, not by a ring of flash attention."
        )


def _settings(flags: CommandFlags, draft: Draft) -> None:
    """Fill in our settings, from the flags and from OpenRLHF's defaults."""
    for name, about in TRAIN_SFT.items():
        mine = name in flags
        if mine and (why := LEFT_OUT.get(name)):
            flags.drop(name, why)
            continue
        rule = RULES.get(name)
        if mine and isinstance(rule, Refused):
            flags.drop(name, rule.reason)
            continue
        setting = NAMES.get(name, name)
        if name in ("ckpt.load_enable",):
            if mine:
                draft.set("train.resume_or_start", True, "--ckpt.load_enable")
            continue
        if name not in NAMES and isinstance(rule, Becomes):
            continue  # max_mem, muon: nothing of a fine-tuning
        if setting not in USED:
            if mine and name not in ("local_rank", "ds.use_universal_ckpt", "ds.ring_attn_head_stride"):
                flags.drop(name, "Fine-tuning here has nothing of the kind.")
            continue
        value = _value(flags.values[name], about.nargs) if mine else of_default(about)
        if setting.endswith("lr_scheduler") and isinstance(value, str):
            if mine and value not in (*WITH_FLOOR, "constant", "constant_with_warmup", "inverse_sqrt"):
                draft.set("sft.min_lr_ratio", 0.0, f"{value} ends at 0")
            if mine and value == "constant":
                draft.set("sft.lr_warmup_ratio", 0.0, "transformers' constant does not warm up")
            value = SCHEDULERS.get(value, value)
        directory = name in ("ckpt.path", "ckpt.output_dir")
        if value is None or (not mine and (setting in draft.settings or directory)):
            continue
        if name == "data.input_template" and "data.apply_chat_template" in flags:
            continue
        if not mine and (name.startswith(("eval.", "logger.wandb.")) or name == "ckpt.max_mem"):
            continue
        draft.set(setting, list(value) if isinstance(value, tuple) else value, "" if mine else DEFAULT)


def _value(values: Sequence[Any], nargs: int | str | None) -> Any:
    if nargs == 0:
        return True
    return values[0] if nargs is None else list(values)


def _finished(draft: Draft) -> Imported:
    for name in [*draft.settings]:
        default = value_at(Config(), name)
        if draft.why.get(name) == DEFAULT and same(draft.settings[name], default):
            draft.unset(name)
    if not draft.settings.get("sft.input_key"):
        draft.differs("The command has no --data.input_key: OpenRLHF reads the column `input`.")
    problems = Problems()
    cfg = attempt(None, draft.settings, problems, violations_of_fine_tuning, ranks_of=RANKS_OF)
    take_checked_values(draft, cfg)
    s = cfg.sft
    passes = f"{s.max_epochs} pass{'es' * (s.max_epochs > 1)} over {shown(s.dataset)}"
    summary = f"fine-tuning: {passes}, {s.batch_size} rows an update, learning rate {s.learning_rate:g}"
    return Imported(draft, alone(cfg), problems.lines, summary)
