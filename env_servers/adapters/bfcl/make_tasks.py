"""python -m env_servers.adapters.bfcl.make_tasks: rows for a run from BFCL's multi-turn tasks, those of the installed
package or a file of yours.

The prompt has the functions of the row's classes and says how --protocol writes a call; the environment is told the
rest. ARTIST trains on 100 tasks of multi_turn_base, with one turn of the user each, and keeps the other 100 (which ones
is not stated): --turns 1 --count 100 --rest held_out.jsonl."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from env_servers.flags import file_to_write, whole
from openrlhf_tir.data.bfcl.functions import DIRECTORY, read_functions
from openrlhf_tir.data.bfcl.prompt import PROTOCOLS
from openrlhf_tir.data.bfcl.rows import with_functions
from openrlhf_tir.data.json_rows import read_json
from openrlhf_tir.errors import DataError

from .package import ANSWERS, data_directory

CATEGORIES = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")


def parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    p = argparse.ArgumentParser(
        prog="python -m env_servers.adapters.bfcl.make_tasks", description=__doc__, formatter_class=raw
    )
    which = p.add_mutually_exclusive_group()
    which.add_argument(
        "--categories",
        nargs="+",
        choices=CATEGORIES,
        default=["multi_turn_base"],
        help="of the package's own data (default: multi_turn_base)",
    )
    which.add_argument(
        "--rows",
        type=Path,
        metavar="FILE",
        help=f"BFCL's file instead; {ANSWERS} and {DIRECTORY} are beside it, or the package's",
    )
    p.add_argument(
        "--protocol",
        choices=PROTOCOLS,
        default="tool",
        help="how the prompt says calls are written (default: %(default)s)",
    )
    p.add_argument(
        "--turns",
        type=int,
        metavar="N",
        help="the first N turns of each task; a task without a true call in them is left out (default: all)",
    )
    p.add_argument(
        "--count", type=whole(1), metavar="N", help="N of the rows, drawn with --seed (default: all, in their order)"
    )
    p.add_argument("--rest", type=file_to_write, metavar="FILE.jsonl", help="where those go that --count leaves")
    p.add_argument("--seed", type=int, default=0, help="of --count (default: %(default)s)")
    p.add_argument("--out", type=file_to_write, required=True, metavar="FILE.jsonl")
    return p


def rows(files: Sequence[Path], protocol: str, turns: int | None = None) -> Iterator[dict[str, Any]]:
    """Raises DataError with file, line and field. `turns`: the first so many of each task, and no task without a true
    call in them."""
    for path in files:
        functions = read_functions(_beside(path, DIRECTORY))
        answers = _beside(path, ANSWERS) / path.name
        truth = {row.get("id"): row for _, row in read_json(answers)} if answers.is_file() else {}
        for where, row in read_json(path):
            made = {
                **with_functions(where, {**truth.get(row.get("id"), {}), **row}, functions, protocol),
                "env": "bfcl",
            }
            if turns is not None:
                made |= {
                    "label": made["label"][:turns],
                    "meta": made["meta"] | {"turns": made["meta"]["turns"][: turns - 1]},
                }
            if turns is None or any(made["label"]):
                yield made


def _beside(path: Path, name: str) -> Path:
    return path.parent / name if (path.parent / name).is_dir() else data_directory() / name


def package_file(category: str) -> Path:
    """Its name has the version of the leaderboard. Raises DataError for a package without it."""
    found = sorted(data_directory().glob(f"BFCL_v*_{category}.json"))
    if not found:
        raise DataError(
            f"The package bfcl-eval has no BFCL_v*_{category}.json in {data_directory()}. Give the file: --rows FILE."
        )
    return found[-1]


def drawn(
    made: list[dict[str, Any]], count: int | None, seed: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(the rows that were asked for, the others), each in their order. Raises DataError where there are fewer."""
    if count is None:
        return made, []
    if not 0 < count <= len(made):
        raise DataError(f"--count {count}: there are {len(made)} rows.")
    chosen = set(random.Random(seed).sample(range(len(made)), count))
    return [r for i, r in enumerate(made) if i in chosen], [r for i, r in enumerate(made) if i not in chosen]


def main() -> None:
    args = parser().parse_args()
    try:
        if args.turns is not None and args.turns < 1:
            raise DataError(f"--turns {args.turns}: a task has one turn or more.")
        files = [args.rows] if args.rows else [package_file(category) for category in args.categories]
        chosen, rest = drawn(list(rows(files, args.protocol, args.turns)), args.count, args.seed)
        for path, made in ((args.out, chosen), (args.rest, rest)):
            if path is not None:
                path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made), encoding="utf-8")
                print(f"{path}: {len(made)} rows")
    except (DataError, OSError) as e:
        sys.exit(f"bfcl makes no tasks: {e}")


if __name__ == "__main__":
    main()
