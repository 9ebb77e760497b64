"""quickstart: the toy model (made once per seed), then RL on it, in one session."""

from __future__ import annotations

import argparse

from ..config.flags import add_config_flags
from ..config.numbers import real
from . import config_of

RECIPE = "quickstart_cpu"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--setup-seconds", type=real(zero=True), default=0.0, metavar="S", help="what set-up took, for summary.json"
    )
    add_config_flags(parser, recipe=RECIPE)


def run(args: argparse.Namespace) -> int:
    from ..pipeline.checkpoints.lineage import check_unused
    from .preflight import check

    cfg = config_of(args, makes_data=True)
    for fact in check(cfg, model=False, data=False):
        print(f"check: {fact}", flush=True)
    from ..cluster.run_lock import run_lock

    with run_lock(cfg.run_dir, cfg.train.start_wait_s):
        check_unused(cfg)
        from ..cluster.jobs.main import quickstart  # takes seconds: a directory in use is refused before

        quickstart(cfg, setup_s=args.setup_seconds)
    return 0
