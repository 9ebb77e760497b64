"""train: recipe + flags -> preflight -> cluster.main.train."""

from __future__ import annotations

import argparse
import sys

from ..config.flags import add_config_flags
from . import config_and_problems
from .restarts import run_with_restarts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check-only", action="store_true", help="stop after the checks that run before Ray or a model is loaded")
    add_config_flags(parser)


def run(args: argparse.Namespace) -> int:
    from ..pipeline.lineage import checkpoints_of
    from .preflight import check

    cfg, problems = config_and_problems(args)
    for fact in check(cfg, problems=problems):
        print(f"check: {fact}", flush=True)
    if args.check_only:
        return 0
    if not cfg.train.resume:  # now: a process that dies before it has begun must not leave an earlier run to be resumed
        checkpoints_of(cfg).clear()
    if cfg.train.max_restarts:
        return run_with_restarts(sys.argv[1:], cfg.train.max_restarts, resume_from=cfg.train.resume_from)
    from ..cluster.main import train

    train(cfg)
    return 0
