"""play: one problem -> one episode on the terminal, the trained tokens coloured."""

from __future__ import annotations

import argparse

from ..config.flags import add_config_flags
from ..config.numbers import whole
from . import config_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="DIR_OR_NAME", help="short for --actor.model_name_or_path")
    parser.add_argument("--question", metavar="TEXT", help="ask this instead of a row of the data; goes through data.input_template")
    parser.add_argument("--row", type=whole(at_least=0), default=0, metavar="N", help="which row of the data set [0]")
    add_config_flags(parser)


def run(args: argparse.Namespace) -> int:
    from .preflight import check

    if args.model:
        args.overrides = {**args.overrides, "actor.model_name_or_path": args.model}
    cfg = config_of(args)
    check(cfg, training=False, data=args.question is None)
    from ..cluster.main import play

    play(cfg, question=args.question, row=args.row)
    return 0
