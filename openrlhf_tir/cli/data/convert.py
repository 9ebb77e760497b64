"""The `data convert` command: write rows of one schema as rows of another."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from ...config.numbers import share, whole
from .rows import MAX_LISTED, add_row_arguments, counted, counting, data_of, files_of, tell

EXAMPLES = """examples:
  openrlhf-tir data convert orz.json dapo.parquet --out train.jsonl       both in one file, as openrlhf-tir reads it
  openrlhf-tir data convert dapo.parquet --env maths --out maths.jsonl     for a run with [envs.maths]
  openrlhf-tir data convert train.jsonl --to torl --out train.parquet     for ToRL's own code
  openrlhf-tir data convert toolace.json --row-schema toolace --to tooln1 --out tooln1.parquet
  openrlhf-tir data convert BFCL_v3_multi_turn_base.json --join possible_answer.json --out bfcl.jsonl"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    from ...data.prepare.official import WRITERS

    add_row_arguments(parser, function_calls=True)
    add = parser.add_argument
    add(
        "--to",
        default="jsonl",
        metavar="NAME",
        help=f"schema to write: {', '.join(WRITERS)}. jsonl is this project's own: prompt, label, env, meta [jsonl]",
    )
    add("--out", type=Path, required=True, metavar="FILE", help="file to write: .jsonl, .json or .parquet")
    add(
        "--join",
        type=Path,
        metavar="FILE",
        help="a file with fields that the rows lack, joined by id: BFCL's possible_answer",
    )
    add("--env", metavar="NAME", help="environment of the rows that name none; with --to jsonl")
    group = parser.add_argument_group(
        "augmentation of xlam, hammer and toolace (in Tool-N1's code, not behind its main result)"
    )
    group.add_argument(
        "--mask-names",
        type=share,
        default=0.0,
        metavar="P",
        help="share of rows whose functions get meaningless names; Tool-N1: 0.67 [0]",
    )
    group.add_argument(
        "--irrelevant",
        type=share,
        default=0.0,
        metavar="P",
        help="share of rows of which another row is made, whose tools do not fit; Tool-N1: 0.15 [0]",
    )
    group.add_argument("--seed", type=whole(at_least=0), default=0, metavar="N", help="seed of both [0]")


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from ...data.bad_rows import BadRows
    from ...data.prepare.convert import Answers, Augment, converted
    from ...data.prepare.files import check_target, write_rows
    from ...data.prepare.function_calls import SOURCES
    from ...data.prepare.official import writer
    from ...errors import ConfigError, DataError

    writer(args.to)
    if args.env is not None and args.to != "jsonl":
        raise ConfigError(f"--env {args.env}: rows of {args.to} name no environment. Use --to jsonl, or leave it out.")
    check_target(args.out, [*files_of(args), *([args.join] if args.join else [])])
    augment = Augment(args.mask_names, args.irrelevant, args.seed) if args.mask_names or args.irrelevant else None
    if augment and args.row_schema not in SOURCES:
        raise ConfigError(
            f"--mask-names and --irrelevant change rows of {', '.join(SOURCES)}."
            " Name the one that these are with --row-schema, or leave them out."
        )
    bad = BadRows(args.on_bad_row, MAX_LISTED)
    left_out = Counter[str]()
    answers = Answers(args.join, bad) if args.join else None
    rows = converted(data_of(args), args.to, bad, left_out, augment, answers, args.env)

    def check(count: int) -> None:
        bad.check_some_good(count, args.sources)
        if not count and not left_out:
            raise DataError(f"{', '.join(args.sources)}: no rows, so nothing to convert. Give data with rows.")
        if count and answers is not None and not answers.used:
            raise DataError(
                f"--join {args.join}: none of its {len(answers)} ids is the 'id' of a row, so nothing would be joined."
                " Give the file that belongs to the rows, or leave it out."
            )

    with counting("convert") as tick:
        count = write_rows(args.out, counted(rows, tick, check))
    print(f"{count} rows of {args.to} in {args.out}")
    for reason, rows_left_out in left_out.most_common():
        print(f"  {rows_left_out} left out, as the method does: {reason}")
    if bad.count:
        print(f"  {bad.count} bad rows left out")
    tell(bad)
    return 0
