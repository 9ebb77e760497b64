"""The `data decontaminate` command: keep the training rows that share no n-grams with evaluation sets, unchanged."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...config import Data
from ...config.numbers import share, whole
from ...config.paths import shorten
from .rows import MAX_LISTED, add_row_arguments, counted, counting, data_of, files_of, tell

if TYPE_CHECKING:
    from ...data.bad_rows import Bad, BadRows
    from ...data.prompts import Problem
    from ...evaluation.suites import Suite

EXAMPLES = """examples:
  openrlhf-tir data decontaminate train.parquet --against aime24.jsonl math500.jsonl --out clean.parquet
  openrlhf-tir data decontaminate train.jsonl --against test.jsonl --out clean.jsonl --ngram 13 --share 0
      any 13 words in common
The questions are compared: the text of the input, or the user messages of a chat, without the instructions that a
schema wraps around them. Rows are written with the columns that they had."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    add_row_arguments(parser)
    add = parser.add_argument
    add(
        "--against",
        nargs="+",
        required=True,
        metavar="DATA",
        help=(
            "the evaluation sets; read by the same columns, by those of a known schema, or by `problem` or `question`."
            " NAME=FILE with the name of a suite (openrlhf-tir eval --list-suites) is read as its published file"
        ),
    )
    add("--against-split", default="test", metavar="NAME", help="split of the evaluation sets [test]")
    add("--out", type=Path, required=True, metavar="FILE", help="file for the kept rows: .jsonl, .json or .parquet")
    add("--report", type=Path, metavar="FILE", help="file for the removed rows and what they resemble: JSONL")
    add(
        "--ngram",
        type=whole(at_least=1, at_most=1000),
        default=8,
        metavar="N",
        help="words of an n-gram; a shorter problem is one n-gram [8]",
    )
    add(
        "--share",
        type=share,
        default=0.5,
        metavar="X",
        help="remove rows that hold this share of an evaluation problem's n-grams; 0: rows that hold any [0.5]",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from ...data.bad_rows import BadRows
    from ...data.prepare.decontaminate import Evaluations, Match, question_of
    from ...data.prepare.files import check_apart, check_target, columns_of, write_rows
    from ...data.prompts import problems, rows_and_problems
    from ...data.rows import SPLIT_SETTING
    from ...errors import ConfigError

    input_files = [*files_of(args), *_files_against(args)]
    check_target(args.out, input_files)
    if args.report:
        check_target(args.report, input_files, "--report", (".jsonl",))
        check_apart(args.out, args.report, "--report")
    cfg = data_of(args)
    bad = BadRows(args.on_bad_row, MAX_LISTED)
    unread = BadRows(args.on_bad_row, MAX_LISTED)
    try:
        evaluations = Evaluations((p for text in args.against for p in _problems(args, text, unread)), args.ngram)
    except ConfigError as error:
        raise error.reworded(lambda text: text.replace(SPLIT_SETTING, "--against-split")) from None
    with counting("look for the data set's own wording") as tick:
        wording = evaluations.learn_wording(
            question_of(p.input) for p in counted(problems(cfg, BadRows(args.on_bad_row)), tick)
        )
    removed: list[dict[str, Any]] = []

    def kept_rows() -> Iterator[Any]:
        for row, problem in rows_and_problems(cfg, bad):
            tick()
            match: Match | None = evaluations.match(question_of(problem.input), args.share)
            if match is None:
                yield row
            else:
                removed.append(
                    {
                        "row": problem.where,
                        "like": match.place,
                        "share": round(match.share, 3),
                        "text": question_of(problem.input),
                        "like_text": match.text,
                    }
                )

    with counting("decontaminate") as tick:
        count = write_rows(args.out, kept_rows(), columns_of(args.sources))
    bad.check_some_good(count + len(removed), args.sources)
    if args.report:
        write_rows(args.report, removed)
    print(
        f"{count} rows kept in {args.out}; {len(removed)} removed, because they hold one of the {len(evaluations)}"
        f" problems of {', '.join(args.against)}"
    )
    if wording:
        print(
            f"  {wording} n-grams are in more than a tenth of the rows and were not counted: the data set's own wording"
        )
    for row in removed[:5]:
        print(f"  {row['row']} is like {row['like']} ({row['share']:.0%}): {shorten(row['text'], 100)!r}")
    if len(removed) > 5:
        print(f"  and {len(removed) - 5} more" + ("" if args.report else "; --report FILE writes them all"))
    if unread.count:
        print(f"  {unread.count} bad rows of the evaluation sets: nothing was compared with them")
        tell(unread)
    tell(bad)
    return 0


def _named(text: str) -> tuple[Suite | None, str]:
    """Return the suite and the file of NAME=FILE. Other text is itself what is read, and of no suite."""
    from ...evaluation.suites import SUITES

    name, equals, file = text.partition("=")
    return (SUITES[name], file) if equals and name in SUITES else (None, text)


def _files_against(args: argparse.Namespace) -> list[Path]:
    from ...data.rows import files_read

    return [path for text in args.against for path in files_read(_named(text)[1], args.against_split)]


def _problems(args: argparse.Namespace, text: str, bad: BadRows) -> Iterator[Problem]:
    """Yield the problems of one evaluation set.

    Raises:
        DataError: No problem of it can be read, so nothing would be compared with it.
    """
    from ...errors import DataError

    cfg = data_of(args, [text], row_schema=None, max_samples=100_000_000, prompt_split=args.against_split)
    listed_before = len(bad.listed)
    count = 0
    for problem in _read(cfg, text, bad):
        count += 1
        yield problem
    if not count:
        listed = bad.listed[listed_before:]
        reason = f"The first bad row: {listed[0]}" if listed else "It has no rows."
        raise DataError(f"--against {text}: no problem in it can be read, so nothing can be told to be in it. {reason}")


def _read(cfg: Data, text: str, bad: Bad) -> Iterator[Problem]:
    """Yield the problems of one source; an answer is not needed here.

    A suite's file is read by its form, rows of a known schema by that, others by the column with the question.
    """
    from ...data.prompts import Problem, problems
    from ...data.rows import read_rows
    from ...errors import DataError
    from ...evaluation.forms import question

    suite, file = _named(text)
    if suite is not None:
        yield from _published(suite, file)
    elif _shows_its_columns(cfg, text):
        yield from problems(cfg, bad)
    else:
        for where, row in read_rows(text, cfg.prompt_split, bad):
            try:
                yield Problem(where, question(where, row), "", None, {})
            except DataError as error:
                bad(error)


def _published(suite: Suite, file: str) -> Iterator[Problem]:
    from ...config.paths import local_path, query_path
    from ...data.prompts import Problem
    from ...errors import ConfigError
    from ...evaluation.suites import SuiteFile, rows_of

    path = local_path(file, "--against")
    if not query_path(path, Path.is_file, "--against"):
        raise ConfigError(f"--against {suite.name}={file}: there is no such file. Correct the path.")
    for number, row in enumerate(rows_of(SuiteFile(suite, path)), 1):
        yield Problem(f"{path} problem {number}", row["prompt"], "", None, {})


def _shows_its_columns(cfg: Data, source: str) -> bool:
    """Return True if the first row shows which schema it has; False if it only has a question, or there is no row.

    Raises:
        ConfigError: The row has neither.
    """
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
