"""The `quickstart` command: watch a model learn to use a tool by RL, a toy model (made here) or a real language
model."""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from miniatures.tasks import NUMBERS, TASKS, RealTask

from ..config import Config
from ..config.flags import add_config_flags
from ..config.numbers import real, whole
from ..errors import ConfigError
from .configuration import config_of, print_facts, run_directory

if TYPE_CHECKING:
    from .checks.host import Machine

RECIPE = "quickstart_cpu"
TOY = "toy"
OF_THE_BASE = ("data", "init", "base")
"""Directories of a run that hold its base model and its problems."""


SMOLLM2 = "smollm2"
NOTICE = (
    "SmolLM2-135M-Instruct learns to {learns}. On two cores with nothing else to do this takes 15 to 35 minutes,"
    " 10 GB of memory and 4 GB of disk. If it is stopped, the same command with --resume goes on from the last"
    " checkpoint."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    parser.add_argument(
        "--model",
        choices=(SMOLLM2, TOY),
        default=TOY,
        help="toy: 167 thousand parameters, minutes; smollm2: SmolLM2-135M-Instruct, 15 to 35 minutes [%(default)s]",
    )
    parser.add_argument(
        "--task",
        choices=list(TASKS),
        help=f"what smollm2 learns: numbers with Python, calls of functions, or search of a corpus [{NUMBERS}]",
    )
    defaults = ", ".join(f"{name} {task.cold_start}" for name, task in TASKS.items())
    parser.add_argument(
        "--cold-start",
        type=whole(at_least=0),
        metavar="N",
        help="demonstrations of the task on which smollm2 is fine-tuned before RL, by the settings sft.*; 0: none"
        f" [{defaults}]",
    )
    parser.add_argument(
        "--setup-seconds",
        type=real(zero=True),
        default=0.0,
        metavar="S",
        help="duration of the set-up before this command, for summary.json",
    )
    add_config_flags(parser, recipe=RECIPE)


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from .preflight import check

    if args.model == TOY and args.task is not None:
        raise ConfigError(f"--task {args.task} is a task of a real language model. Add --model {SMOLLM2}.")
    if args.model == TOY and args.cold_start is not None:
        raise ConfigError(
            f"--cold-start {args.cold_start} is for a real language model. Add --model {SMOLLM2}; the toy always has"
            " its own cold start."
        )
    if args.model != TOY:
        return _real_model(args)
    cfg = config_of(args, makes_data=True)
    if "run_dir" not in args.overrides:
        cfg = in_unused_directory(cfg)
    print_facts(*check(cfg, model=False, data=False))
    with run_directory(cfg):
        from miniatures.toy.jobs import quickstart

        quickstart(cfg, setup_s=args.setup_seconds)
    return 0


class Plan(NamedTuple):
    """What a quickstart with a packaged language model will do.

    Attributes:
        cfg: Its configuration, without what it makes itself.
        task: What the model learns.
        demonstrations: Rows of the cold start; 0: there is none.
    """

    cfg: Config
    task: RealTask
    demonstrations: int


def checked_plan(args: argparse.Namespace) -> Plan:
    """Return the plan of a quickstart with a packaged language model.

    Raises:
        ConfigError: Something cannot work: settings, package, data, memory, the cold start. Nothing was started, and
            the run directory is as it was.
    """
    from miniatures.prepare import BASE, check_package, has_base, with_rows, with_shape

    from .checks.host import Machine, check_memory
    from .preflight import check

    task = TASKS[args.task or NUMBERS]
    if args.recipe == RECIPE:
        args.recipe = task.recipe
    cfg = config_of(args, makes_data=True)
    demonstrations = task.cold_start if args.cold_start is None else args.cold_start
    if "run_dir" not in args.overrides:
        cfg = in_unused_directory(cfg)
    cfg = resumable_before_the_first_checkpoint(cfg)
    machine = Machine()
    cfg = in_fast_precision(cfg, args.overrides, machine)
    named = bool(cfg.actor.model_name_or_path)
    if not named and not has_base(cfg):
        check_package(args.model)
    with tempfile.TemporaryDirectory(prefix="tir-quickstart-") as scratch:
        tried, files = with_rows(cfg, task, Path(scratch))
        check(tried, model=named, data=bool(cfg.data.prompt_dataset), machine=machine)
        if not named:
            check_memory(with_shape(tried, args.model, Path(scratch) / BASE), machine)
        if demonstrations:
            check_cold_start(tried, files.demonstrations, demonstrations)
    return Plan(cfg, task, demonstrations)


def _real_model(args: argparse.Namespace) -> int:
    """Train a packaged language model. Everything that can be wrong is reported before Ray or a model is loaded."""
    from rich.console import Console

    from miniatures.prepare import prepare
    from miniatures.results import kinds_table

    from .preflight import check

    started = time.monotonic()
    cfg, task, demonstrations = checked_plan(args)
    if not cfg.actor.model_name_or_path:
        print(NOTICE.format(learns=task.learns), flush=True)

    with run_directory(cfg):
        cfg = prepare(cfg, args.model, task, demonstrations)
        print_facts(*check(cfg))
        from ..cluster.jobs.main import train

        train(cfg, setup_s=args.setup_seconds + time.monotonic() - started)
        Console().print(kinds_table(cfg.run_dir, task.unseen))
    return 0


def in_fast_precision(cfg: Config, overrides: Mapping[str, Any], machine: Machine) -> Config:
    """Return `cfg`, in fp32 where the recipe has bf16, this CPU is slow at it, and nobody asked for a precision."""
    from .checks.host import slow_precision

    slow = slow_precision(cfg, machine)
    if slow is None or "ds.param_dtype" in overrides:
        return cfg
    print(f"{slow}: the run takes fp32. --ds.param_dtype bf16 is the recipe's.", flush=True)
    return cfg.model_copy(update={"ds": cfg.ds.model_copy(update={"param_dtype": "fp32"})})


def resumable_before_the_first_checkpoint(cfg: Config) -> Config:
    """Return `cfg`, which starts RL from its beginning if the run to resume was stopped at its cold start."""
    from miniatures import cold_start

    from ..pipeline.checkpoints.lineage import checkpoints_of

    if not cfg.train.resume or checkpoints_of(cfg).exist or not (cfg.run_dir / cold_start.DIRECTORY).is_dir():
        return cfg
    return cfg.model_copy(update={"train": cfg.train.model_copy(update={"resume_or_start": True})})


def check_cold_start(cfg: Config, rows: Path, number: int) -> None:
    """Raise ConfigError if the settings of a cold start contradict each other, or if there are fewer demonstrations."""
    from ..config.problems import Problems
    from ..config.rules import violations_of_fine_tuning

    problems = Problems()
    sft = cfg.sft.model_copy(update={"dataset": str(rows)})
    problems.add(violations_of_fine_tuning(cfg.model_copy(update={"sft": sft})))
    with rows.open(encoding="utf-8") as file:
        available = sum(1 for _ in file)
    if number > available:
        problems.add(f"--cold-start {number}: the task has {available} demonstrations. Give that number or less.")
    problems.raise_any()


def in_unused_directory(cfg: Config) -> Config:
    """Return `cfg` with another run directory if the recipe's holds the result of an earlier quickstart.

    A quickstart may be repeated without thinking, and deletes nothing without being asked: the second one goes to
    DIRECTORY-2. The base model is copied there, so that it is not made again.
    """
    from ..pipeline.checkpoints.lineage import results_of

    first = cfg.run_dir
    if cfg.train.resume or cfg.train.overwrite or not results_of(cfg):
        return cfg
    for number in itertools.count(2):
        cfg = cfg.model_copy(update={"run_dir": first.with_name(f"{first.name}-{number}")})
        if not results_of(cfg):
            break
    for name in OF_THE_BASE:
        if (first / name).is_dir() and not (cfg.run_dir / name).exists():
            shutil.copytree(first / name, cfg.run_dir / name)
    print(
        f"{first} holds an earlier quickstart, which stays; this one goes to {cfg.run_dir}. --train.overwrite deletes"
        " the earlier one instead, --run-dir names another directory.",
        flush=True,
    )
    return cfg
