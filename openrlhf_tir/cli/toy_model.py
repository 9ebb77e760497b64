"""The `toy-model` command: make a tiny Qwen2 with a character tokenizer, fine-tune it (cold start), and write its
problems."""

from __future__ import annotations

import argparse

from ..config.flags import add_config_flags
from .configuration import config_of, run_directory
from .quickstart import RECIPE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    parser.add_argument(
        "--lesson",
        default="quickstart",
        metavar="NAME",
        help="what the model is taught: a file of miniatures/toy/lessons [quickstart]",
    )
    add_config_flags(parser, recipe=RECIPE, first=("train.seed", "run_dir"))


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from miniatures.toy import lessons

    from .preflight import check

    lessons.named(args.lesson)
    cfg = config_of(args, makes_data=True)
    check(cfg, training=False, model=False, data=False)
    with run_directory(cfg):  # The base model that a run began from belongs to its results.
        from miniatures.toy.jobs import toy_model

        toy_model(cfg, args.lesson)
    return 0
