"""eval: a model and a data set -> accuracy, code ratio and greedy accuracy, as a table and JSON."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..config.flags import add_config_flags
from ..config.paths import check_new_file
from . import config_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="DIR_OR_NAME", help="short for --actor.model_name_or_path")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the figures as JSON")
    add_config_flags(parser)


def run(args: argparse.Namespace) -> int:
    from .preflight import check

    if args.model:
        args.overrides = {**args.overrides, "actor.model_name_or_path": args.model}
    check_new_file(args.out, "--out")
    cfg = config_of(args)
    check(cfg, training=False)
    from ..cluster.jobs.main import evaluate

    evaluate(cfg, out=args.out)
    return 0
