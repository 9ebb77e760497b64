"""data check: rows -> what they hold, and every bad row with file, line, field and expected type. Exit code 2 when
there is one, unless it may be skipped."""

from __future__ import annotations

import argparse

from ...config import Data
from .rows import MOST_BAD, add_row_arguments, counting, data_of

EXAMPLES = """examples:
  openrlhf-tir data check train.parquet                          the schema is told by the columns
  openrlhf-tir data check rows.jsonl --row-schema toolrl         told which; all bad rows are listed, exit code 2
  openrlhf-tir data check rows.jsonl --on-bad-row skip           counted and listed, exit code 0
A run checks the same rows before it starts (train --check-only), against its environments and templates too."""
ONLY_CHECKED = ("hammer", "retool_sft", "toolace", "xlam")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from ...data.schemas import SCHEMAS

    add_row_arguments(parser, schemas=sorted([*SCHEMAS, *ONLY_CHECKED]))


def run(args: argparse.Namespace) -> int:
    from ...data.bad_rows import BadRows
    from ...errors import DataError

    total, good = BadRows("skip", MOST_BAD), 0
    for source in args.sources:
        bad = BadRows("skip", MOST_BAD)
        rows, lines = _look(data_of(args, [source], on_bad_row="skip"), bad)
        for line in lines:
            print(line)
        good += rows
        total.count += bad.count
        total.listed += bad.listed
    if total.count and args.on_bad_row == "error":
        more = f"\n... and {total.count - len(total.listed)} more." if total.count > len(total.listed) else ""
        remedy = "Correct them, or leave them out: --on-bad-row skip here, --data.on_bad_row skip in a run."
        raise DataError("\n".join(total.listed) + more + f"\n{total.count} bad rows. {remedy}")
    total.check_some_good(good, args.sources)  # as a run would end
    for line in total.listed:
        print(f"  bad: {line}")
    if total.count > len(total.listed):
        print(f"  and {total.count - len(total.listed)} more bad rows")
    return 0


def _look(cfg: Data, bad) -> tuple[int, list[str]]:
    """The good rows of one source, and lines about it."""
    from ...data.prepare.others import OTHERS, check_other
    from ...data.prepare.summary import Summary
    from ...data.prompts import rows_and_problems
    from ...errors import DataError

    (source,) = cfg.datasets
    with counting(f"check {source}") as tick:
        if cfg.row_schema in OTHERS:
            rows, facts = check_other(cfg, bad, tick)
            schema = cfg.row_schema
        else:
            summary, schema = Summary(), ""
            for row, problem in rows_and_problems(cfg, bad):
                schema = schema or _schema_of(source, row, cfg)
                summary.add(problem)
                tick()
            rows, facts = summary.rows, summary.facts()
    if not rows and not bad.count:
        raise DataError(f"{source} has no rows. Point at a data set with problems.")
    head = f"{source}: {rows + bad.count} rows{f' as {schema}' if schema else ''}: {rows} good, {bad.count} bad"
    return rows, [head, *(f"  {fact}" for fact in facts)]


def _schema_of(source: str, row, cfg: Data) -> str:
    from ...data.prompts import reader_of

    return reader_of(source, row, cfg).schema or f"columns {cfg.input_key} and {cfg.label_key}"
