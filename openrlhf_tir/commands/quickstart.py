"""quickstart: the toy model (made once per seed), then RL on it, in one session."""

from __future__ import annotations

import argparse
import itertools
import shutil

from ..config import Config
from ..config.flags import add_config_flags
from ..config.numbers import real
from . import config_of

RECIPE = "quickstart_cpu"
OF_THE_BASE = ("data", "init", "base")
"""Directories of a run that hold the toy model which it started from."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--setup-seconds", type=real(zero=True), default=0.0, metavar="S", help="what set-up took, for summary.json"
    )
    add_config_flags(parser, recipe=RECIPE)


def run(args: argparse.Namespace) -> int:
    from ..pipeline.checkpoints.lineage import check_unused
    from .preflight import check

    cfg = config_of(args, makes_data=True)
    if "run_dir" not in args.overrides:
        cfg = in_unused_directory(cfg)
    for fact in check(cfg, model=False, data=False):
        print(f"check: {fact}", flush=True)
    from ..cluster.run_lock import run_lock

    with run_lock(cfg.run_dir, cfg.train.start_wait_s):
        check_unused(cfg)
        from ..cluster.jobs.main import quickstart  # takes seconds: a directory in use is refused before

        quickstart(cfg, setup_s=args.setup_seconds)
    return 0


def in_unused_directory(cfg: Config) -> Config:
    """Return `cfg` with a run directory of its own if the recipe's holds the result of an earlier quickstart.

    A quickstart may be repeated without a thought, and deletes nothing unasked: the second goes to DIRECTORY-2. It
    takes the base model along, which need not be made again.
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
