"""The `data check` command: print what rows hold, and every bad row with file, line, field and expected type.

The exit code is 2 if there is a bad row, unless --on-bad-row skip allows it.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ...config import Data
from .rows import MAX_LISTED, add_row_arguments, counting, data_of, tell

if TYPE_CHECKING:
    from ...data.bad_rows import BadRows

EXAMPLES = """examples:
  openrlhf-tir data check train.parquet                          the columns decide which schema it is
  openrlhf-tir data check rows.jsonl --row-schema toolrl         a named schema; bad rows are listed, exit code 2
  openrlhf-tir data check rows.jsonl --on-bad-row skip           bad rows are counted and listed, exit code 0
A run checks the same rows before it starts (train --check-only), also against its environments and templates."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    add_row_arguments(parser, function_calls=True)


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from ...data.bad_rows import BadRows
    from ...errors import DataError

    bad = BadRows("skip", MAX_LISTED)
    good = 0
    for source in args.sources:
        rows, lines = _examine(data_of(args, [source], on_bad_row="skip"), bad)
        for line in lines:
            print(line)
        good += rows
    if bad.count and args.on_bad_row == "error":
        more = f"\n... and {bad.count - len(bad.listed)} more." if bad.count > len(bad.listed) else ""
        remedy = "Correct them, or leave them out: --on-bad-row skip here, --data.on_bad_row skip in a run."
        raise DataError("\n".join(bad.listed) + more + f"\n{bad.count} bad rows. {remedy}")
    bad.check_some_good(good, args.sources)  # A run without a good row would fail too.
    tell(bad)
    return 0


def _examine(cfg: Data, bad: BadRows) -> tuple[int, list[str]]:
    """Return the number of good rows of one source, and lines about it. Bad rows are added to `bad`."""
    from ...data.prepare.function_calls import SOURCES
    from ...data.prepare.others import check_other
    from ...data.prepare.summary import Summary
    from ...data.prompts import rows_and_problems
    from ...errors import DataError

    (source,) = cfg.datasets
    bad_before = bad.count
    with counting(f"check {source}") as tick:
        if cfg.row_schema in SOURCES:
            rows, facts = check_other(cfg, bad, tick)
            schema = cfg.row_schema
        else:
            summary, schema = Summary(), ""
            for row, problem in rows_and_problems(cfg, bad):
                schema = schema or _schema_of(source, row, cfg)
                summary.add(problem)
                tick()
            rows, facts = summary.rows, summary.facts()
    bad_here = bad.count - bad_before
    if not rows and not bad_here:
        raise DataError(f"{source} has no rows. Point at a data set with problems.")
    head = f"{source}: {rows + bad_here} rows{f' as {schema}' if schema else ''}: {rows} good, {bad_here} bad"
    return rows, [head, *(f"  {fact}" for fact in facts)]


def _schema_of(source: str, row, cfg: Data) -> str:
    from ...data.prompts import reader_of

    return reader_of(source, row, cfg).schema or f"columns {cfg.input_key} and {cfg.label_key}"
