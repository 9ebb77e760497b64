"""The `play` command: sample one episode of a problem and show it on the terminal, with the trained tokens coloured.

With the directory of a run it shows what that run sampled: what a step trained, and what was dropped or failed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.flags import add_config_flags
from ..config.numbers import whole
from ..errors import ConfigError
from ..telemetry.printable import printable
from .configuration import add_model, config_of

if TYPE_CHECKING:
    from rich.console import Console

    from ..observability.report.samples import Sample

TRAINED = "green"
UNTRAINED = "cyan"
ENVIRONMENT = "yellow"

FIRST = (
    "data.prompt_dataset",
    "env.name",
    "env.protocol",
    "reward.name",
    "rollout.max_new_tokens",
    "rollout.temperature",
)
"""The settings that its help lists."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="directory of a run, running or finished: show what it sampled instead of sampling",
    )
    parser.add_argument(
        "--step",
        type=whole(at_least=1),
        metavar="K",
        help="with RUN: the learner step, as the metrics number it [the last one whose text is kept]",
    )
    parser.add_argument(
        "--dropped",
        nargs="?",
        const="any",
        metavar="REASON",
        help=(
            "with RUN: show what was dropped or failed, for one reason or for any; with --step, only between the step"
            " before it and that step"
        ),
    )
    parser.add_argument(
        "--limit", type=whole(at_least=1), default=8, metavar="N", help="with RUN: trajectories at most [8]"
    )
    add_model(parser)
    parser.add_argument(
        "--question", metavar="TEXT", help="ask this instead of a row of the data; goes through data.input_template"
    )
    parser.add_argument("--row", type=whole(at_least=0), default=0, metavar="N", help="which row of the data set [0]")
    add_config_flags(parser, first=FIRST)


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    if args.run is not None:
        return _show_run(args)
    if args.step is not None or args.dropped is not None:
        raise ConfigError(
            "--step and --dropped show what a run sampled. Name its directory: openrlhf-tir play RUN --step 5."
        )
    from .preflight import check

    cfg = config_of(args)
    check(cfg, training=False, data=args.question is None)
    from ..cluster.jobs.main import play

    play(cfg, question=args.question, row=args.row)
    return 0


def _show_run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from ..observability.report.samples import last_trained_of, samples_of

    console = Console()
    run_dir = Path(args.run)
    if args.dropped is not None and args.step is None:
        return _show_untrained(console, run_dir, args.dropped, args.limit)
    if args.step is None:
        step, samples = last_trained_of(run_dir)
    else:
        step = args.step
        samples = samples_of(run_dir, step, args.dropped)
    for sample in samples[: args.limit]:
        show(console, sample)
    end = "dropped before" if args.dropped else "trained by"
    console.print(f"{min(args.limit, len(samples))} of {len(samples)} trajectories {end} step {step}", highlight=False)
    return 0


def _show_untrained(console: Console, run_dir: Path, reason: str, limit: int) -> int:
    """Show samples of every reason, then the number of groups by reason."""
    from ..observability.report.samples import spread_over_groups, untrained_of

    untrained = untrained_of(run_dir, reason)
    shown = spread_over_groups(untrained.samples, limit)
    for sample in shown:
        show(console, sample)
    for name, groups in untrained.counts.items():
        console.print(printable(f"{groups:8d} groups: {name}"), highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"{len(shown)} of {len(untrained.samples)} trajectories that were kept of these",
        highlight=False,
        soft_wrap=True,
    )
    if not shown:
        console.print("No text was kept: what ran them died before it could write.", soft_wrap=True)
    return 0


def show(console: Console, sample: Sample) -> None:
    """Print one trajectory: its text coloured by who wrote it, its calls and parts. Green is what the learner
    trained."""
    from rich.text import Text

    from ..observability.report.samples import facts_of, title_of

    row = sample.row
    text = Text()
    text.append(printable(row["prompt"]), style="dim")
    model_style = TRAINED if sample.trained else UNTRAINED
    for run in row["runs"]:
        text.append(printable(run["text"]), style=ENVIRONMENT if run["source"] == "env" else model_style)
    console.rule(Text(printable(title_of(sample))), style="dim")
    console.print(text, soft_wrap=True)
    console.print(printable("\n".join(facts_of(sample))), soft_wrap=True, highlight=False, markup=False, style="dim")
