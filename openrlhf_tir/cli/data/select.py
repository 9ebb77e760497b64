"""The `data select` command: keep the rows that are worth training on, judged by samples of them, unchanged."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...config.numbers import real, share, whole
from .rows import MAX_LISTED, add_row_arguments, counting, data_of, files_of, tell

EXAMPLES = """examples:
  openrlhf-tir data select train.jsonl --samples runs/first --pass-rate 0.2 0.8 --out harder.jsonl
  openrlhf-tir data select train.jsonl --samples samples.jsonl --pass-rate 0 0.9 --unsampled keep --out rest.jsonl
  openrlhf-tir data select train.jsonl --samples runs/full --learning-impact 0.6 --out limr.jsonl
A run keeps its samples with --logger.trajectories 1; train on all rows for several epochs,
with filter.names = [], for --learning-impact."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    add_row_arguments(parser)
    add = parser.add_argument
    add(
        "--samples",
        nargs="+",
        required=True,
        metavar="DIR_OR_FILE",
        help='a run\'s directory, or JSONL {"row", "question", "input" or "prompt"; "correct"; "epoch"}',
    )
    add("--out", type=Path, required=True, metavar="FILE", help="file to write: .jsonl, .json or .parquet")
    add(
        "--pass-rate",
        nargs=2,
        type=share,
        metavar=("LOW", "HIGH"),
        help="keep rows that were solved in this share of their samples, both ends included",
    )
    add(
        "--learning-impact",
        type=real(above=-math.inf),
        nargs="?",
        const=0.6,
        metavar="X",
        help="keep rows whose LIMR score is at least X; 0.6 without a value",
    )
    add(
        "--top",
        type=whole(at_least=1),
        metavar="N",
        help="of these keep the N whose pass rate is nearest to 1/2, or whose learning impact is largest [all]",
    )
    add(
        "--min-samples", type=whole(at_least=1), default=1, metavar="N", help="rows with fewer count as not sampled [1]"
    )
    add("--unsampled", choices=["drop", "keep"], default="drop", help="what to do with rows without samples [drop]")


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from ...data.bad_rows import BadRows
    from ...data.prepare.files import check_target, columns_of, write_rows
    from ...data.prepare.outcomes import TEXTS, read_outcomes
    from ...data.prepare.selection import Selection
    from ...data.prompts import rows_and_problems
    from ...errors import ConfigError, DataError

    if args.pass_rate is None and args.learning_impact is None:
        raise ConfigError("Nothing to select by. Give --pass-rate LOW HIGH, e.g. 0.2 0.8, or --learning-impact.")
    if args.pass_rate and args.pass_rate[0] > args.pass_rate[1]:
        low, high = args.pass_rate
        raise ConfigError(
            f"--pass-rate {low:g} {high:g}: LOW is above HIGH, so no row can stay."
            f" Swap them: --pass-rate {high:g} {low:g}."
        )
    check_target(args.out, [*files_of(args), *map(Path, args.samples)])
    cfg = data_of(args)
    bad = BadRows(args.on_bad_row, MAX_LISTED)
    with counting("read samples") as tick:
        outcomes = read_outcomes(args.samples, tick)
    selection = Selection(outcomes, args.pass_rate, args.learning_impact, args.min_samples, args.unsampled == "keep")
    with counting("look at rows") as tick:
        for _, problem in rows_and_problems(cfg, BadRows(args.on_bad_row)):
            selection.look(problem)
            tick()
    if selection.most_samples and not selection.sampled:
        raise DataError(
            f"No row has {args.min_samples} samples; the one with most has {selection.most_samples}."
            " Lower --min-samples, or give more --samples."
        )
    if not selection.sampled:
        raise DataError(
            f"None of the {selection.rows} rows of {', '.join(args.sources)} was sampled in {', '.join(args.samples)}."
            f" Give the data that the run was trained on, or samples whose row or {' or '.join(TEXTS)} is that of the"
            " rows."
        )
    kept_numbers = selection.kept_places(args.top)

    def rows() -> Iterator[Any]:
        for number, (row, _) in enumerate(rows_and_problems(cfg, bad)):
            if number in kept_numbers:
                yield row

    count = write_rows(args.out, rows(), columns_of(args.sources))
    for line in [f"{count} of {selection.rows} rows in {args.out}", *selection.facts()]:
        print(line)
    tell(bad)
    return 0
