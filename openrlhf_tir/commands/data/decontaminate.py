"""data decontaminate: training and evaluation rows -> the training rows that are in none of these, as they were."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...config.numbers import share, whole
from ...config.paths import check_new_file, shorten
from .rows import MOST_BAD, add_row_arguments, counting, data_of, tell

EXAMPLES = """examples:
  openrlhf-tir data decontaminate train.parquet --against aime24.jsonl math500.jsonl --out clean.parquet
  openrlhf-tir data decontaminate train.jsonl --against test.jsonl --out clean.jsonl --ngram 13 --share 0
      any 13 words in common
What is compared is what is asked: the input's text, or the user messages of a chat, without the instructions that a
schema wraps around them. Rows are written with the columns that they had."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from ...data.schemas import SCHEMAS

    add_row_arguments(parser, schemas=sorted(SCHEMAS))
    add = parser.add_argument
    add(
        "--against",
        nargs="+",
        required=True,
        metavar="DATA",
        help="the evaluation sets; read by the same columns, or by those that they show",
    )
    add("--out", type=Path, required=True, metavar="FILE", help="rows that stay: .jsonl, .json or .parquet")
    add("--report", type=Path, metavar="FILE", help="rows that go, with what they are like: JSONL")
    add(
        "--ngram",
        type=whole(at_least=1, at_most=1000),
        default=8,
        metavar="N",
        help="words of an n-gram; a shorter problem is one [8]",
    )
    add(
        "--share",
        type=share,
        default=0.5,
        metavar="X",
        help="of an evaluation problem's n-grams; a row that holds so many goes, 0: a row that holds any [0.5]",
    )


def run(args: argparse.Namespace) -> int:
    from ...data.bad_rows import BadRows
    from ...data.prepare.decontaminate import Evaluations, Match, asked
    from ...data.prepare.files import check_target, write_rows
    from ...data.prompts import problems, rows_and_problems

    check_target(args.out, [*args.sources, *args.against])
    for path, flag in ((args.out, "--out"), (args.report, "--report")):
        check_new_file(path, flag)
    cfg, bad = data_of(args), BadRows(args.on_bad_row, MOST_BAD)
    evaluations = Evaluations(
        problems(data_of(args, args.against, row_schema=None, max_samples=100_000_000)), args.ngram
    )
    with counting("look for the data set's own wording") as tick:
        wording = evaluations.learn_wording(
            _ticked((asked(p.input) for p in problems(cfg, BadRows(args.on_bad_row))), tick)
        )
    gone: list[dict[str, Any]] = []

    def staying() -> Iterator[Any]:
        for row, problem in rows_and_problems(cfg, bad):
            tick()
            found: Match | None = evaluations.match(asked(problem.input), args.share)
            if found is None:
                yield row
            else:
                gone.append(
                    {
                        "row": problem.where,
                        "like": found.place,
                        "share": round(found.share, 3),
                        "text": asked(problem.input),
                        "like_text": found.text,
                    }
                )

    with counting("decontaminate") as tick:
        count = write_rows(args.out, staying())
    bad.check_some_good(count + len(gone), args.sources)
    if args.report:
        write_rows(args.report.with_suffix(".jsonl") if args.report.suffix != ".jsonl" else args.report, gone)
    print(
        f"{count} rows stay in {args.out}; {len(gone)} go, as they hold one of the {len(evaluations)} problems of"
        f" {', '.join(args.against)}"
    )
    if wording:
        print(
            f"  {wording} n-grams are in more than a tenth of the rows and were not counted: the data set's own wording"
        )
    for one in gone[:5]:
        print(f"  {one['row']} is like {one['like']} ({one['share']:.0%}): {shorten(one['text'], 100)!r}")
    if len(gone) > 5:
        print(f"  and {len(gone) - 5} more" + ("" if args.report else "; --report FILE keeps them all"))
    tell(bad)
    return 0


def _ticked(texts: Iterator[str], tick) -> Iterator[str]:
    for text in texts:
        tick()
        yield text
