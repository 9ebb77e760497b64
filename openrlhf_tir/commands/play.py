"""play: one problem -> one episode on the terminal, the trained tokens coloured; or RUN --step K -> what that step
trained or dropped."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.flags import add_config_flags
from ..config.numbers import whole
from ..errors import ConfigError
from ..logs.printable import printable
from . import config_of

if TYPE_CHECKING:
    from rich.console import Console

    from ..report.samples import Sample

TRAINED, UNTRAINED, ENVIRONMENT = "green", "cyan", "yellow"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="directory of a run with logger.trajectories: show what it sampled, instead of sampling",
    )
    parser.add_argument(
        "--step", type=whole(at_least=1), metavar="K", help="with RUN: the learner step; 1 is the first"
    )
    parser.add_argument(
        "--dropped",
        nargs="?",
        const="any",
        metavar="REASON",
        help="with RUN: what was dropped before that step, for one reason or for any",
    )
    parser.add_argument(
        "--limit", type=whole(at_least=1), default=8, metavar="N", help="with RUN: trajectories at most [8]"
    )
    parser.add_argument("--model", metavar="DIR_OR_NAME", help="short for --actor.model_name_or_path")
    parser.add_argument(
        "--question", metavar="TEXT", help="ask this instead of a row of the data; goes through data.input_template"
    )
    parser.add_argument("--row", type=whole(at_least=0), default=0, metavar="N", help="which row of the data set [0]")
    add_config_flags(parser)


def run(args: argparse.Namespace) -> int:
    if args.run is not None:
        return _show_run(args)
    if args.step is not None or args.dropped is not None:
        raise ConfigError(
            "--step and --dropped show what a run sampled. Name its directory: openrlhf-tir play RUN --step 5."
        )
    from .preflight import check

    if args.model:
        args.overrides = {**args.overrides, "actor.model_name_or_path": args.model}
    cfg = config_of(args)
    check(cfg, training=False, data=args.question is None)
    from ..cluster.jobs.main import play

    play(cfg, question=args.question, row=args.row)
    return 0


def _show_run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from ..report.samples import samples_of

    if args.step is None:
        raise ConfigError("Which step? Give --step K; 1 is the first.")
    console = Console()
    samples = samples_of(Path(args.run), args.step, args.dropped)
    for sample in samples[: args.limit]:
        show(console, sample)
    what = "dropped before" if args.dropped else "trained by"
    console.print(
        f"{min(args.limit, len(samples))} of {len(samples)} trajectories {what} step {args.step}", highlight=False
    )
    return 0


def show(console: Console, sample: Sample) -> None:
    """One trajectory: its text by who produced it, its calls and parts. Green is what the learner trained."""
    from rich.text import Text

    from ..report.samples import facts_of, title_of

    row = sample.row
    text = Text()
    text.append(printable(row["prompt"]), style="dim")
    for run in row["runs"]:
        text.append(
            printable(run["text"]),
            style=ENVIRONMENT if run["source"] == "env" else TRAINED if sample.trained else UNTRAINED,
        )
    console.rule(Text(printable(title_of(sample))), style="dim")
    console.print(text, soft_wrap=True)
    console.print(printable("\n".join(facts_of(sample))), soft_wrap=True, highlight=False, markup=False, style="dim")
