"""data decontaminate: training and evaluation rows -> the training rows that are in none of these, as they were."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...config import Data
from ...config.numbers import share, whole
from ...config.paths import shorten
from .rows import MOST_BAD, add_row_arguments, counting, data_of, files_of, tell

if TYPE_CHECKING:
    from ...data.bad_rows import Bad, BadRows
    from ...data.prompts import Problem

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
        help=(
            "the evaluation sets; read by the same columns, by those that they show, or by `problem` or `question`."
            " NAME=FILE, a suite's (openrlhf-tir eval --list-suites), is read as that one's published file"
        ),
    )
    add("--against-split", default="test", metavar="NAME", help="of --against, as --split of DATA [test]")
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
    from ...data.prepare.files import check_apart, check_target, columns_of, write_rows
    from ...data.prompts import problems, rows_and_problems
    from ...data.rows import SPLIT_SETTING
    from ...errors import ConfigError

    read = [*files_of(args), *_files_against(args)]
    check_target(args.out, read)
    if args.report:
        check_target(args.report, read, "--report", (".jsonl",))
        check_apart(args.out, args.report, "--out and --report")
    cfg, bad = data_of(args), BadRows(args.on_bad_row, MOST_BAD)
    unread = BadRows(args.on_bad_row, MOST_BAD)
    try:
        evaluations = Evaluations((p for text in args.against for p in _problems(args, text, unread)), args.ngram)
    except ConfigError as e:
        raise type(e)(str(e).replace(SPLIT_SETTING, "--against-split")) from None
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
        count = write_rows(args.out, staying(), columns_of(args.sources))
    bad.check_some_good(count + len(gone), args.sources)
    if args.report:
        write_rows(args.report, gone)
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
    if unread.count:
        print(f"  {unread.count} bad rows of the evaluation sets: nothing was compared with them")
        tell(unread)
    tell(bad)
    return 0


def _files_against(args: argparse.Namespace) -> list[Path]:
    from ...data.rows import files_read
    from ...evaluation.suites import SUITES

    named = [(*text.partition("="), text) for text in args.against]
    return [
        path
        for name, given, file, text in named
        for path in files_read(file if given and name in SUITES else text, args.against_split)
    ]


def _problems(args: argparse.Namespace, text: str, bad: BadRows) -> Iterator[Problem]:
    """What one evaluation set asks. Raises DataError for one of which nothing can be read: nothing would be compared
    with it."""
    from ...errors import DataError

    count, before = 0, bad.count
    for problem in _read(
        data_of(args, [text], row_schema=None, max_samples=100_000_000), args.against_split, text, bad
    ):
        count += 1
        yield problem
    if not count:
        why = f"The first bad row: {bad.listed[before]}" if bad.listed[before:] else "It has no rows."
        raise DataError(f"--against {text}: no problem in it can be read, so nothing can be told to be in it. {why}")


def _read(cfg: Data, split: str, text: str, bad: Bad) -> Iterator[Problem]:
    """A suite's file by its form, rows that show how they are read by that, others by what they ask: no answer is
    needed here."""
    from ...data.prompts import Problem, problems
    from ...data.rows import read_rows
    from ...errors import DataError
    from ...evaluation.forms import question
    from ...evaluation.suites import SUITES

    name, given, file = text.partition("=")
    cfg = cfg.model_copy(update={"prompt_split": split})
    if given and name in SUITES:
        yield from _published(name, file)
    elif _shows_its_columns(cfg, text):
        yield from problems(cfg, bad)
    else:
        for where, row in read_rows(text, split, bad):
            try:
                yield Problem(where, question(where, row), "", None, {})
            except DataError as e:
                bad(e)


def _published(name: str, file: str) -> Iterator[Problem]:
    from ...config.paths import asked, local_path
    from ...data.prompts import Problem
    from ...errors import ConfigError
    from ...evaluation.suites import SUITES, SuiteFile, rows_of

    path = local_path(file, "--against")
    if not asked(path, Path.is_file, "--against"):
        raise ConfigError(f"--against {name}={file}: there is no such file. Correct the path.")
    for i, row in enumerate(rows_of(SuiteFile(SUITES[name], path)), 1):
        yield Problem(f"{path} problem {i}", row["prompt"], "", None, {})


def _shows_its_columns(cfg: Data, source: str) -> bool:
    """Whether the first row shows how rows are read. False: it only has a field that asks, or there is no row. Raises
    ConfigError where it has neither."""
    from ...data.prompts import reader_of
    from ...data.rows import read_rows
    from ...errors import ConfigError, DataError
    from ...evaluation.forms import question

    where, first = next(read_rows(source, cfg.prompt_split, lambda e: None), (source, {}))
    try:
        reader_of(source, first, cfg)
    except ConfigError as unknown:
        try:
            question(where, first)
        except DataError:
            if first:
                raise unknown from None
        return False
    return True


def _ticked(texts: Iterator[str], tick) -> Iterator[str]:
    for text in texts:
        tick()
        yield text
