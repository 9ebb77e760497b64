"""The `compare` command: curves of several runs in one page, a table in the terminal, and the best checkpoint by a
metric."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="directories of runs, finished or not")
    parser.add_argument(
        "--best",
        default="eval/accuracy",
        metavar="METRIC",
        help="say which run and update is the best by this metric of metrics.jsonl [eval/accuracy]",
    )
    parser.add_argument("--lowest", action="store_true", help="with --best: the lowest value is the best")
    parser.add_argument(
        "--metric", action="append", default=[], metavar="METRIC", help="also draw this metric; may be repeated"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("compare.html"), metavar="FILE", help="the page of curves [compare.html]"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ..errors import ConfigError
    from ..observability.report.compare import arms_of, best_of, read_runs, screen_of, write_page
    from ..telemetry.printable import printable

    runs = read_runs(list(dict.fromkeys(args.runs)))
    arms = arms_of(runs)
    try:
        path = write_page(args.out, arms, args.best, args.lowest, args.metric)
    except OSError as error:
        raise ConfigError(f"--out {args.out} cannot be written: {error.strerror or error}. Choose another.") from None
    head, rows, configurations = screen_of(arms, args.best, args.lowest)
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(head):
        table.add_column(Text(printable(column)), justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console = Console()

    def line(text: str) -> None:
        console.print(printable(text), soft_wrap=True, highlight=False, markup=False)

    # In a pipe the table must not be cut to the width of a terminal.
    (console if console.is_terminal else Console(width=max(160, console.width))).print(table)
    for text in configurations:
        line(text)
    candidates = [(run, best) for run in runs if (best := best_of(run, args.best, args.lowest)) is not None]
    if candidates:
        best_run, best = (min if args.lowest else max)(candidates, key=lambda pair: pair[1].value)
        which = "lowest" if args.lowest else "best"
        line(f"{which} {args.best}: {best.value:.4g}, {best_run.name} at update {best.step}")
        line(f"  checkpoint: {best.checkpoint or 'that of this update is not kept (ckpt.best_metric_key keeps it)'}")
        line(f"  model:      {best.model or 'none was exported of this update'}")
    else:
        line(f"no run has {args.best}: --best names another metric")
    line(f"curves: {path}")
    return 0
