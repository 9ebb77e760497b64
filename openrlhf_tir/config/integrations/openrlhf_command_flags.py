"""The flags of one command line of OpenRLHF, whatever its generation -> {name of 0.11.2: values}.

Three generations of names are read: dotted ones (0.10.2 on), those of 0.10.2 to 0.11.1 that 0.11.2 renamed, and flat
ones (up to 0.10.1). What 0.11.2 does not have, and what has no value that reading can tell, is left out with a
sentence.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..openrlhf_flags import RULES_0_11_0
from ..openrlhf_renamed import GONE, NAMES, OLD_CORRECTION, SWITCHES_WITH_A_VALUE
from .bash_script import readable, unknowns
from .openrlhf_parsers import OpenRLHFFlag

OLD_SFT_NAMES = {
    "pretrain": "model.model_name_or_path",
    "gradient_checkpointing": "model.gradient_checkpointing_enable",
    "gradient_checkpointing_use_reentrant": "model.gradient_checkpointing_reentrant",
    "aux_loss_coef": "model.aux_loss_coef",
    "pretrain_mode": "model.pretrain_mode_enable",
    "learning_rate": "adam.lr",
    "adam_betas": "adam.betas",
    "l2": "adam.weight_decay",
    "dataset": "data.dataset",
    "train_data": "data.dataset",
    "dataset_probs": "data.dataset_probs",
    "train_split": "data.dataset_split",
    "dataset_split": "data.dataset_split",
    "output_key": "data.output_key",
    "multiturn": "data.multiturn",
    "tokenizer_chat_template": "data.tokenizer_chat_template",
    "max_samples": "data.max_samples",
    "max_len": "data.max_len",
    "lr_warmup_ratio": "lr_warmup_ratio",
    "lr_scheduler": "lr_scheduler",
    "max_norm": "max_norm",
}
"""train_sft's flat names (up to 0.10.1) where they are others than train_ppo_ray's."""
FROM_ONE_ON = frozenset(
    {
        *("actor.num_nodes", "actor.num_gpus_per_node", "reward.num_nodes", "reward.num_gpus_per_node"),
        *("vllm.num_engines", "vllm.tensor_parallel_size", "ds.ring_attn_size", "data.max_len", "data.max_samples"),
        *("rollout.batch_size", "rollout.n_samples_per_prompt", "rollout.max_new_tokens", "eval.n_samples_per_prompt"),
        *("train.batch_size", "train.max_epochs", "train.num_episodes"),
        *(f"{part}.{size}" for part in ("rollout", "train") for size in ("micro_batch_size", "max_tokens_per_gpu")),
    }
)
"""Flags that count something of which there is one at least."""
KINDS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}
"""The types of OpenRLHF's flags."""


@dataclass
class CommandFlags:
    """The flags of a command line by their names of 0.11.2."""

    known: Mapping[str, OpenRLHFFlag]
    """The flags of the program."""
    values: dict[str, list[Any]] = field(default_factory=dict)
    """Typed; an empty list for a switch."""
    written: dict[str, str] = field(default_factory=dict)
    """How the script wrote each, without the dashes."""
    notes: list[str] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)
    """Flags by their names of 0.11.2 whose value only a run can tell -> what tells it."""
    flat: bool = False
    """Whether the script has flat names, of OpenRLHF 0.10.1 or older."""

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def first(self, name: str) -> Any:
        """Return a flag's first value, or the program's default where it is not given."""
        return self.values[name][0] if name in self.values else self.known[name].default

    def setting(self, name: str) -> Any:
        """Return the value of a flag that is given as a setting has it: True for a switch, or one value, or a list."""
        nargs = self.known[name].nargs
        values = self.values[name]
        if nargs == 0:
            return True
        return values[0] if nargs is None else list(values)

    def text(self, name: str) -> str:
        """Return a flag as the script wrote it."""
        return " ".join([f"--{self.written.get(name, name)}", *map(str, self.values.get(name, []))])

    def drop(self, name: str, why: str = "") -> None:
        """Leave a flag out if it is given, and say why; say nothing where there is nothing to say."""
        if name in self.values:
            if why:
                self.notes.append(f"{self.text(name)}: left out. {why}")
            del self.values[name]


def read_flags(words: Sequence[str], known: Mapping[str, OpenRLHFFlag], *, sft: bool = False) -> CommandFlags:
    """Return the flags of `words`, the command line behind the program's name."""
    flags = CommandFlags(known)
    names = {**NAMES, **(OLD_SFT_NAMES if sft else {})}
    for flag, values in _pieces(words, flags):
        if flag in GONE:
            flags.notes.append(f"--{flag}: left out, {GONE[flag]}")
            continue
        new, values = _renamed(flag, values, known, names)
        flags.flat = flags.flat or (new is not None and flag != new and "." not in flag and flag not in known)
        if new is None:
            near = difflib.get_close_matches(flag, [*known, *names], n=1, cutoff=0.7)
            hint = f" Did you mean --{near[0]}?" if near else ""
            flags.notes.append(f"--{flag}: left out, OpenRLHF 0.11.2 has no such flag and would refuse it.{hint}")
            continue
        typed = _typed(flag, new, values, known, flags)
        if typed is not None:
            flags.values.pop(new, None)  # the last one counts, as for argparse
            flags.values[new] = typed
            flags.written[new] = flag
    if not sft:
        _lengths(flags)
    return flags


def _pieces(words: Sequence[str], flags: CommandFlags) -> list[tuple[str, list[str]]]:
    """Return flags and the words behind each."""
    pieces: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--") and len(word) > 2 and not unknowns(word.partition("=")[0]):
            name, equals, value = word[2:].partition("=")
            pieces.append((name, [value] if equals else []))
        elif word and not word.strip():
            flags.notes.append(
                "A backslash with a blank behind it ends a line of the command: bash took the blank for an argument and"
                " the command ended there. What stands below it never reached OpenRLHF, and is not here."
            )
        elif pieces:
            pieces[-1][1].append(word)
        else:
            flags.notes.append(f"{readable(word)!r} belongs to no flag: left out.")
    return pieces


def _renamed(
    flag: str, values: list[str], known: Mapping[str, OpenRLHFFlag], names: Mapping[str, str]
) -> tuple[str | None, list[str]]:
    """Return the flag's name of 0.11.2, None where there is none, and its values there."""
    if flag in known or flag in RULES_0_11_0:
        return flag, values
    if flag in SWITCHES_WITH_A_VALUE:
        name, value = SWITCHES_WITH_A_VALUE[flag]
        return name, [value]
    if flag == "vllm_is_truncated_threshold" and len(values) == 1:
        values = ["0", *values]  # once it was the upper bound alone
    name = OLD_CORRECTION.get(flag) or names.get(flag, "")
    if name in known or flag in OLD_CORRECTION:
        return name, values
    begins = [name for name in known if name.startswith(flag)]  # argparse takes what is unambiguous
    return (begins[0] if len(begins) == 1 and "." in flag else None), values


def _typed(
    flag: str, new: str, values: list[str], known: Mapping[str, OpenRLHFFlag], flags: CommandFlags
) -> list[Any] | None:
    """Return the values as OpenRLHF's parser would type them; None, with a sentence, where it could not."""
    hidden = [source for value in values for source in unknowns(value)]
    if hidden:
        flags.unread[new] = hidden[0]
        flags.notes.append(
            f"--{flag}: left out, its value comes from `{hidden[0]}`, which is not run here. Set it yourself: --{new}."
        )
        return None
    about = known.get(new) or OpenRLHFFlag(None, 0 if new.endswith("_enable") else None)
    if about.nargs == 0:
        if values:
            flags.notes.append(f"--{flag} {' '.join(values)}: it is a switch, what stands behind it is left out.")
        return []
    wanted = about.nargs if isinstance(about.nargs, int) else 1
    if (not values or values == [""]) and about.nargs != "*":
        flags.notes.append(f"--{flag}: left out, there is no value behind it (a variable that is empty?).")
        return None
    if len(values) < wanted:
        flags.notes.append(f"--{flag} {' '.join(values)}: left out, OpenRLHF reads {wanted} numbers there.")
        return None
    if about.nargs is None and len(values) > 1:
        flags.notes.append(f"--{flag} {' '.join(values)}: it takes one value; {' '.join(values[1:])!r} is left out.")
        values = values[:1]
    try:
        typed = [KINDS[about.kind](value) for value in values]
    except ValueError:
        kind = "whole number" if about.kind == "int" else "number"
        flags.notes.append(f"--{flag} {' '.join(values)}: left out, OpenRLHF reads a {kind} there.")
        return None
    if new in FROM_ONE_ON and typed[0] < 1:
        flags.notes.append(f"--{flag} {' '.join(values)}: left out, it has to be 1 at least.")
        return None
    return typed


def _lengths(flags: CommandFlags) -> None:
    """OpenRLHF up to 0.9 bounded prompts and responses apart, each by 1024 where nothing was said."""
    prompt, response = (
        flags.values.get(name, [None])[0] if flags.written.get(name) == flag else None
        for name, flag in (("data.max_len", "prompt_max_len"), ("rollout.max_new_tokens", "generate_max_len"))
    )
    if prompt is None and response is None:
        return
    prompt, response = prompt or 1024, response or 1024
    flags.values["data.max_len"] = [prompt + response]
    flags.values["rollout.max_new_tokens"] = [response]
    flags.notes.append(
        f"--prompt_max_len {prompt}, --generate_max_len {response} (OpenRLHF up to 0.9): data.max_len bounds prompt and"
        f" response together, {prompt + response}; a longer prompt is left out and counted, not cut."
    )
