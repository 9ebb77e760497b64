"""The command line of `openrlhf-tir sft`: its settings, the names that OpenRLHF's train_sft has for them, its rules.

A recipe of RL may be given too: its model, ranks and DeepSpeed settings count, and all that is about rollouts does not.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

from .catalog import all_settings
from .flags import add_config_flags, overrides_and_problems, unknown_flags
from .openrlhf_flags import SCHEDULERS
from .problems import Problems
from .ranks import ranks_of_machine
from .schema import Algo, Config, Critic, Ref
from .sections import sequence_parallel
from .sections.rollout import Rollout
from .sections.train import run_has_time_before_its_limit
from .settings import attempt

USED = frozenset(s.name for s in all_settings() if s.fine_tuning)
"""Every setting that fine-tuning reads."""
FIRST = (
    "actor.model_name_or_path",
    "sft.dataset",
    "sft.eval_dataset",
    "sft.mask_blocks",
    "sft.batch_size",
    "sft.max_len",
    "sft.max_epochs",
    "sft.learning_rate",
    "run_dir",
    "train.resume",
)
"""The settings that its help lists."""

NAMES = {
    "model.model_name_or_path": "actor.model_name_or_path",
    "model.gradient_checkpointing_enable": "actor.gradient_checkpointing_enable",
    "adam.lr": "sft.learning_rate",
    "adam.betas": "actor.adam_betas",
    "adam.eps": "actor.adam_eps",
    "adam.weight_decay": "actor.l2",
    "max_norm": "actor.max_norm",
    "lr_scheduler": "sft.lr_scheduler",
    "lr_warmup_ratio": "sft.lr_warmup_ratio",
    "min_lr_ratio": "sft.min_lr_ratio",
    "train.batch_size": "sft.batch_size",
    "train.max_epochs": "sft.max_epochs",
    "train.max_steps": "sft.max_steps",
    "data.dataset": "sft.dataset",
    "data.dataset_split": "sft.dataset_split",
    "data.max_samples": "sft.max_samples",
    "data.multiturn": "sft.multiturn",
    "data.input_key": "sft.input_key",
    "data.output_key": "sft.output_key",
    "data.input_template": "sft.input_template",
    "data.apply_chat_template": "sft.apply_chat_template",
    "data.max_len": "sft.max_len",
    "eval.dataset": "sft.eval_dataset",
    "eval.split": "sft.eval_split",
    "eval.steps": "sft.eval_steps",
    "ckpt.load_enable": "train.resume",
}
"""Flag of train_sft -> the setting. Some are settings of RL under the same name, which fine-tuning does not use."""


RANKS_OF = partial(ranks_of_machine, fine_tuning=True)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of fine-tuning, and OpenRLHF's names for them, which the help does not list."""
    add_config_flags(parser, shown=USED, aliases=NAMES, first=FIRST)


def config_of(args: argparse.Namespace, problems: Problems) -> Config:
    """Return the Config of a fine-tuning; every mistake in recipe and flags is added to `problems`.

    Raises:
        ConfigError: The recipe cannot be read.
    """
    given = {**args.compat, **args.overrides}
    for name in sorted(NAMES.keys() & given.keys()):
        if NAMES[name] in given:
            problems.add(
                f"--{name} has no effect: it is --{NAMES[name]} here, and that is given too. Leave one of them out."
            )
            continue
        args.overrides = {**args.overrides, NAMES[name]: _plain(given[name])}
    args.overrides = {k: v for k, v in args.overrides.items() if k not in NAMES}
    args.compat = {k: v for k, v in args.compat.items() if k not in NAMES}
    problems.add(unknown_flags(args.unknown))
    overrides = overrides_and_problems(args, problems)
    problems.add(
        f"--{name} has no effect on a fine-tuning. Leave it out; `openrlhf-tir sft --help` lists what has."
        for name in overrides
        if name not in USED
    )
    used = {name: value for name, value in overrides.items() if name in USED}
    return alone(attempt(args.recipe, used, problems, violations, ranks_of=RANKS_OF))


def _plain(value: Any) -> Any:
    """Return a flag's value as our own flags give it: text, or a list of several."""
    if isinstance(value, list) and len(value) < 2:
        value = value[0] if value else "true"
    return SCHEDULERS.get(value, value) if isinstance(value, str) else value


def alone(cfg: Config) -> Config:
    """Return the configuration without what a recipe of RL adds to a learner: critic, reference model, temperature,
    and Muon, whose learning rate is another one."""
    actor = cfg.actor.model_copy(update={"optim": "adam"})
    return cfg.model_copy(
        update={"actor": actor, "algo": Algo(), "critic": Critic(), "ref": Ref(), "rollout": Rollout(), "envs": {}}
    )


def violations(c: Config) -> Iterator[str]:
    """Yield what the sections accept by themselves and what does not work together in a fine-tuning."""
    s = c.sft
    ranks = c.shards
    yield from sequence_parallel.shared_sequences_are_supported(c)
    if not s.datasets:
        yield (
            "sft.dataset is not set. Give rows to learn from: a JSONL or parquet file,"
            " a directory of them, or a name on the hub."
        )
    if s.batch_size < ranks:
        yield (
            f"sft.batch_size = {s.batch_size} is less than the {ranks} learner ranks that share an update."
            " Raise it, or lower actor.num_gpus_per_node."
        )
    if s.eval_steps > 0 and not s.eval_dataset:
        yield (
            f"sft.eval_steps = {s.eval_steps}, but sft.eval_dataset is not set."
            " Give held-out rows, or leave sft.eval_steps unset."
        )
    if s.output_key is not None and s.input_key is None:
        yield (
            f"sft.output_key = {s.output_key!r} goes with a column of prompts, and sft.input_key is unset."
            " Name that column too."
        )
    if s.max_len > c.train.max_tokens_per_gpu * c.ds.ring_attn_size:
        yield (
            f"sft.max_len = {s.max_len} tokens do not fit into a forward pass of train.max_tokens_per_gpu ="
            f" {c.train.max_tokens_per_gpu}. Lower the first or raise the second."
        )
    yield from run_has_time_before_its_limit(c)
