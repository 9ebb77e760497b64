"""python -m env_servers.adapters.bfcl.make_tasks: write rows of BFCL's multi-turn tasks, of the installed package or of
your own file.

The prompt has the functions of the row's classes and explains how --protocol writes a call; everything else goes to the
environment. ARTIST trains on 100 tasks of multi_turn_base, with one turn of the user each, and keeps the other 100
(which ones is not stated): --turns 1 --count 100 --rest held_out.jsonl.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from env_servers.flags import command_parser, file_to_write, whole
from env_servers.task_rows import write_rows
from openrlhf_tir.data.bfcl.functions import DIRECTORY, read_functions
from openrlhf_tir.data.bfcl.prompt import PROTOCOLS
from openrlhf_tir.data.bfcl.rows import with_functions
from openrlhf_tir.data.json_rows import read_json
from openrlhf_tir.errors import DataError

from .package import ANSWERS, data_directory

CATEGORIES = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    p = command_parser("env_servers.adapters.bfcl.make_tasks", __doc__)
    source = p.add_mutually_exclusive_group()
    source.add_argument(
        "--categories",
        nargs="+",
        choices=CATEGORIES,
        default=["multi_turn_base"],
        help="categories of the package's own data (default: multi_turn_base)",
    )
    source.add_argument(
        "--rows",
        type=Path,
        metavar="FILE",
        help=f"a file in BFCL's form instead; {ANSWERS} and {DIRECTORY} are beside it, or the package's",
    )
    p.add_argument(
        "--protocol",
        choices=PROTOCOLS,
        default="tool",
        help="turn protocol in which the prompt explains calls (default: %(default)s)",
    )
    p.add_argument(
        "--turns",
        type=int,
        metavar="N",
        help="keep the first N turns of each task; leave out tasks without a true call in them (default: all)",
    )
    p.add_argument(
        "--count", type=whole(1), metavar="N", help="N rows, drawn with --seed (default: all, in their order)"
    )
    p.add_argument("--rest", type=file_to_write, metavar="FILE.jsonl", help="file for the rows that --count leaves out")
    p.add_argument("--seed", type=int, default=0, help="seed of --count (default: %(default)s)")
    p.add_argument("--out", type=file_to_write, required=True, metavar="FILE.jsonl")
    return p


def rows(files: Sequence[Path], protocol: str, turns: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of BFCL's files.

    Args:
        files: The files.
        protocol: Turn protocol in which the prompt explains calls.
        turns: Number of turns of each task that are kept; a task without a true call in them is left out.

    Raises:
        DataError: A row is malformed. The message has file, line and field.
    """
    for path in files:
        functions = read_functions(_directory_for(path, DIRECTORY))
        answers = _directory_for(path, ANSWERS) / path.name
        truth = {row.get("id"): row for _, row in read_json(answers)} if answers.is_file() else {}
        for where, raw in read_json(path):
            row = with_functions(where, {**truth.get(raw.get("id"), {}), **raw}, functions, protocol)
            row = {**row, "env": "bfcl"}
            if turns is not None:
                row["label"] = row["label"][:turns]
                row["meta"] = row["meta"] | {"turns": row["meta"]["turns"][: turns - 1]}
            if turns is None or any(row["label"]):
                yield row


def _directory_for(path: Path, name: str) -> Path:
    """Return the directory `name` beside a file, or that of the package."""
    beside = path.parent / name
    return beside if beside.is_dir() else data_directory() / name


def package_file(category: str) -> Path:
    """Return the package's newest file of a category: its name has the leaderboard's version. Raises DataError."""
    files = sorted(data_directory().glob(f"BFCL_v*_{category}.json"))
    if not files:
        raise DataError(
            f"The package bfcl-eval has no BFCL_v*_{category}.json in {data_directory()}. Give the file: --rows FILE."
        )
    return files[-1]


def drawn(
    rows: list[dict[str, Any]], count: int | None, seed: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return `count` random rows and the others, each in their order. Raises DataError if there are fewer."""
    if count is None:
        return rows, []
    if not 0 < count <= len(rows):
        raise DataError(f"--count {count}: there are {len(rows)} rows.")
    chosen = set(random.Random(seed).sample(range(len(rows)), count))
    return (
        [row for i, row in enumerate(rows) if i in chosen],
        [row for i, row in enumerate(rows) if i not in chosen],
    )


def main() -> None:
    """Write the rows.

    Raises:
        DataError: --turns is below 1, or a row cannot be read.
    """
    args = parser().parse_args()
    try:
        if args.turns is not None and args.turns < 1:
            raise DataError(f"--turns {args.turns}: a task has one turn or more.")
        files = [args.rows] if args.rows else [package_file(category) for category in args.categories]
        chosen, others = drawn(list(rows(files, args.protocol, args.turns)), args.count, args.seed)
        for path, part in ((args.out, chosen), (args.rest, others)):
            if path is not None:
                write_rows(path, part)
    except (DataError, OSError) as e:
        sys.exit(f"bfcl makes no tasks: {e}")


if __name__ == "__main__":
    main()
