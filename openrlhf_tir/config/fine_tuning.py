"""The command line of `openrlhf-tir sft`: its settings, the names that OpenRLHF's train_sft has for them.

A recipe of RL may be given too: its model, ranks and DeepSpeed settings count, and all that is about rollouts does not.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

from ..errors import Problem
from . import rules
from .catalog import all_settings
from .flags import add_config_flags, overrides_and_problems, unknown_flags
from .openrlhf_flags import SCHEDULERS
from .problems import Problems
from .ranks import ranks_of_machine
from .schema import Algo, Config, Critic, Ref
from .sections.pipeline import ALONE
from .sections.rollout import Rollout
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
    "data.dataset_split": "data.prompt_split",
    "data.multiturn": "sft.multiturn",
    "data.input_key": "sft.input_key",
    "data.output_key": "sft.output_key",
    "data.input_template": "sft.input_template",
    "data.apply_chat_template": "sft.apply_chat_template",
    "data.max_len": "sft.max_len",
    "eval.dataset": "sft.eval_dataset",
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
    cfg = alone(attempt(args.recipe, used, problems, _violations, ranks_of=RANKS_OF))
    if "eval.steps" in used and cfg.eval.steps > 0 and not cfg.sft.eval_dataset:  # a recipe may have it for RL
        problems.add(
            f"--eval.steps {cfg.eval.steps} has no effect without sft.eval_dataset. Give held-out rows, or leave it"
            " out.",
            code="no_effect",
        )
    return cfg


def _violations(cfg: Config) -> Iterator[Problem]:
    """Yield a problem for every rule that the configuration breaks without what a recipe of RL adds to it."""
    return rules.violations_of_fine_tuning(alone(cfg))


def _plain(value: Any) -> Any:
    """Return a flag's value as our own flags give it: text, or a list of several."""
    if isinstance(value, list) and len(value) < 2:
        value = value[0] if value else "true"
    return SCHEDULERS.get(value, value) if isinstance(value, str) else value


def alone(cfg: Config) -> Config:
    """Return the configuration without what a recipe of RL adds to a learner: critic, reference model, temperature, the
    balance of a mixture's experts, Muon, whose learning rate is another one, and engines beside it or on its GPUs."""
    return cfg.model_copy(
        update={
            "actor": cfg.actor.model_copy(update={"optim": "adam", "aux_loss_coef": 0.0}),
            "algo": Algo(),
            "critic": Critic(),
            "ref": Ref(),
            "rollout": Rollout(),
            "envs": {},
            "pipeline": ALONE,
            "train": cfg.train.model_copy(update={"colocate_all": False, "share_gpus": False}),
        }
    )
