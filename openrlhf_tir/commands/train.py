"""train: recipe + flags -> preflight -> cluster.jobs.main.train."""

from __future__ import annotations

import argparse
import sys

from ..config.flags import add_config_flags
from ..exit_codes import status_of
from . import config_and_problems
from .restarts import run_with_restarts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--check-only", action="store_true", help="stop after the checks that run before Ray or a model is loaded"
    )
    parser.add_argument(
        "--die-with-parent",
        type=int,
        metavar="PID",
        help="stop when the process PID, which started this one, is gone (Linux)",
    )
    add_config_flags(parser)


def run(args: argparse.Namespace) -> int:
    from ..pipeline.checkpoints.lineage import check_unused, checkpoints_of
    from .preflight import check

    if args.die_with_parent:
        from .parent import die_with

        die_with(args.die_with_parent)
    cfg, problems = config_and_problems(args)
    problems.add(
        f"--{name} has no effect on a run of RL. Fine-tune with `openrlhf-tir sft`, or leave it out."
        for name in args.overrides
        if name.startswith("sft.")
    )
    for fact in check(cfg, problems=problems):
        print(f"check: {fact}", flush=True)
    if args.check_only:
        return 0
    if cfg.train.max_restarts:
        return status_of(run_with_restarts(sys.argv[1:], cfg.train, cfg.run_dir / cfg.ckpt.path / "latest"))
    from ..cluster.run_lock import run_lock

    with run_lock(cfg.run_dir, cfg.train.start_wait_s):
        check_unused(cfg)
        # now: a process that dies before it has begun must not leave an earlier run to be resumed
        if not cfg.train.resume:
            checkpoints_of(cfg).clear()
        from ..cluster.jobs.main import train  # takes seconds: a directory in use is refused before

        train(cfg)
    return 0
