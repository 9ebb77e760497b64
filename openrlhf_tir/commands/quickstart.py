"""The `quickstart` command: watch a model learn to use a tool by RL, a toy model (made here) or a real language
model."""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
import time
from pathlib import Path

from ..config import Config
from ..config.flags import add_config_flags
from ..config.numbers import real
from ..errors import ConfigError
from ..miniatures.tasks import NUMBERS, TASKS, RealTask
from . import config_of

RECIPE = "quickstart_cpu"
TOY = "toy"
OF_THE_BASE = ("data", "init", "base")
"""Directories of a run that hold its base model and its problems."""


SMOLLM2 = "smollm2"
NOTICE = (
    "SmolLM2-135M-Instruct learns to {learns}. On two cores with nothing else to do this takes half an hour or more,"
    " 11 GB of memory and 4 GB of disk. If it is stopped, the same command with --resume goes on from the last"
    " checkpoint."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    parser.add_argument(
        "--model",
        choices=sorted([TOY, SMOLLM2]),
        default=TOY,
        help="toy: 167 thousand parameters, some minutes; smollm2: SmolLM2-135M-Instruct, half an hour [%(default)s]",
    )
    parser.add_argument(
        "--task",
        choices=list(TASKS),
        help=f"what smollm2 learns: numbers with Python, calls of functions, or search of a corpus [{NUMBERS}]",
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
    from ..cluster.run_lock import run_lock
    from ..pipeline.checkpoints.lineage import check_unused
    from .preflight import check

    if args.model == TOY and args.task is not None:
        raise ConfigError(f"--task {args.task} is a task of a real language model. Add --model {SMOLLM2}.")
    task = TASKS[args.task or NUMBERS]
    if args.recipe == RECIPE and args.model != TOY:
        args.recipe = task.recipe
    cfg = config_of(args, makes_data=True)
    if args.model != TOY:
        return _real_model(args, cfg, task)
    if "run_dir" not in args.overrides:
        cfg = in_unused_directory(cfg)
    for fact in check(cfg, model=False, data=False):
        print(f"check: {fact}", flush=True)

    with run_lock(cfg.run_dir, cfg.train.start_wait_s):
        check_unused(cfg)
        from ..cluster.jobs.main import quickstart  # This import takes seconds, so a directory in use is refused first.

        quickstart(cfg, setup_s=args.setup_seconds)
    return 0


def _real_model(args: argparse.Namespace, cfg: Config, task: RealTask) -> int:
    """Train a packaged language model. Everything that can be wrong is reported before Ray or a model is loaded."""
    from rich.console import Console

    from ..cluster.run_lock import run_lock
    from ..miniatures.prepare import check_package, prepare, with_rows
    from ..miniatures.results import kinds_table
    from ..pipeline.checkpoints.lineage import check_unused
    from .preflight import check

    started = time.monotonic()
    if not cfg.actor.model_name_or_path:
        check_package(args.model)
    if "run_dir" not in args.overrides:
        cfg = in_unused_directory(cfg)
    with tempfile.TemporaryDirectory(prefix="tir-quickstart-") as scratch:  # nothing is left of a run that is refused
        tried, _ = with_rows(cfg, task, Path(scratch))
        check(tried, model=bool(cfg.actor.model_name_or_path), data=bool(cfg.data.prompt_dataset))
    if not cfg.actor.model_name_or_path:
        print(NOTICE.format(learns=task.learns), flush=True)

    with run_lock(cfg.run_dir, cfg.train.start_wait_s):
        check_unused(cfg)
        cfg = prepare(cfg, args.model, task)
        for fact in check(cfg):
            print(f"check: {fact}", flush=True)
        from ..cluster.jobs.main import train  # This import takes seconds, so a directory in use is refused first.

        train(cfg, setup_s=args.setup_seconds + time.monotonic() - started)
        Console().print(kinds_table(cfg.run_dir, task.unseen))
    return 0


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
