"""The `quickstart` command: watch a model learn to use Python by RL, a toy model (made here) or a real language
model."""

from __future__ import annotations

import argparse
import itertools
import shutil
import time
from dataclasses import dataclass

from ..config import Config
from ..config.flags import add_config_flags
from ..config.numbers import real
from . import config_of

RECIPE = "quickstart_cpu"
TOY = "toy"
OF_THE_BASE = ("data", "init", "base")
"""Directories of a run that hold its base model and its problems."""


@dataclass(frozen=True)
class Kind:
    """A model that the quickstart can start from: its recipe, and what the user reads at the start."""

    recipe: str
    notice: str = ""


MODELS = {
    TOY: Kind(RECIPE),
    "smollm2": Kind(
        "smollm2_cpu",
        "SmolLM2-135M-Instruct learns to answer questions about numbers with one line of Python. On two cores with"
        " nothing else to do this takes about half an hour, 11 GB of memory and 4 GB of disk. If it is stopped, the"
        " same command with --resume goes on from the last checkpoint.",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    parser.add_argument(
        "--model",
        choices=sorted(MODELS),
        default=TOY,
        help="toy: 167 thousand parameters, some minutes; smollm2: SmolLM2-135M-Instruct, half an hour [%(default)s]",
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

    if args.recipe == RECIPE:
        args.recipe = MODELS[args.model].recipe
    cfg = config_of(args, makes_data=True)
    if args.model != TOY:
        return _real_model(args, cfg)
    if "run_dir" not in args.overrides:
        cfg = in_unused_directory(cfg)
    for fact in check(cfg, model=False, data=False):
        print(f"check: {fact}", flush=True)

    with run_lock(cfg.run_dir, cfg.train.start_wait_s):
        check_unused(cfg)
        from ..cluster.jobs.main import quickstart  # This import takes seconds, so a directory in use is refused first.

        quickstart(cfg, setup_s=args.setup_seconds)
    return 0


def _real_model(args: argparse.Namespace, cfg: Config) -> int:
    """Train a packaged language model. Everything that can be wrong is reported before Ray or a model is loaded."""
    from rich.console import Console

    from ..cluster.run_lock import run_lock
    from ..miniatures.prepare import check_package, prepare
    from ..miniatures.results import kinds_table
    from ..pipeline.checkpoints.lineage import check_unused
    from .preflight import check

    started = time.monotonic()
    if not cfg.actor.model_name_or_path:
        check_package(args.model)
    if "run_dir" not in args.overrides:
        cfg = in_unused_directory(cfg)
    check(cfg, model=bool(cfg.actor.model_name_or_path), data=bool(cfg.data.prompt_dataset))
    if not cfg.actor.model_name_or_path:
        print(MODELS[args.model].notice, flush=True)

    with run_lock(cfg.run_dir, cfg.train.start_wait_s):
        check_unused(cfg)
        cfg = prepare(cfg, args.model)
        for fact in check(cfg):
            print(f"check: {fact}", flush=True)
        from ..cluster.jobs.main import train  # This import takes seconds, so a directory in use is refused first.

        train(cfg, setup_s=args.setup_seconds + time.monotonic() - started)
        Console().print(kinds_table(cfg.run_dir))
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
