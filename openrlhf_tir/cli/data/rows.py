"""The flags with which every `data` command reads rows, and how it reports bad rows."""

from __future__ import annotations

import argparse
from argparse import SUPPRESS
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ...config import Data
from ...config.numbers import whole
from ...errors import ConfigError, unknown

if TYPE_CHECKING:
    from ...data.bad_rows import BadRows

T = TypeVar("T")
EVERY = 500
"""Rows between two movements of the progress bar, because moving it takes longer than reading a row."""
MAX_LISTED = 1000
"""Bad rows that a command lists."""


def add_row_arguments(parser: argparse.ArgumentParser, *, function_calls: bool = False) -> None:
    """Add the sources, and how their rows are read, to a parser. The flags are named as in the `data` section.

    Args:
        parser: The parser.
        function_calls: Whether the command reads the sources of Tool-N1's rows too.
    """
    from ...data.prepare.function_calls import SOURCES
    from ...data.schemas import SCHEMAS

    schemas = sorted([*SCHEMAS, *(SOURCES if function_calls else ())])
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="DATA",
        help="JSONL, JSON or parquet file, a directory of them, or a name on the hub",
    )
    parser.set_defaults(schemas=schemas)
    group = parser.add_argument_group("how rows are read", "A run's own flags are understood too: --data.input_key.")

    def add(flag: str, setting: str, **options: Any) -> None:
        name = flag.removeprefix("--").replace("-", "_")
        group.add_argument(flag, dest=name, **options)
        group.add_argument(f"--data.{setting}", dest=name, **{**options, "default": SUPPRESS, "help": SUPPRESS})

    add(
        "--row-schema",
        "row_schema",
        metavar="NAME",
        help=f"schema of the rows: {', '.join(schemas)} [decided by their columns]",
    )
    add(
        "--input-key",
        "input_key",
        default="prompt",
        metavar="COLUMN",
        help="column of the input, where there is no schema [prompt]",
    )
    add(
        "--label-key",
        "label_key",
        default="label",
        metavar="COLUMN",
        help="column of the label, where there is no schema [label]",
    )
    add(
        "--split",
        "prompt_split",
        default="train",
        metavar="NAME",
        help="split of a directory or of a data set on the hub [train]",
    )
    add(
        "--max-samples",
        "max_samples",
        type=whole(at_least=1),
        default=100_000_000,
        metavar="N",
        help="maximum number of rows of each source [all]",
    )
    add(
        "--on-bad-row",
        "on_bad_row",
        choices=["error", "skip"],
        default="error",
        help="if a row cannot be used, end with exit code 2, or leave it out and list it [error]",
    )


def data_of(args: argparse.Namespace, sources: Sequence[str] | None = None, **changes: object) -> Data:
    """Return the `data` section of the flags.

    Args:
        args: The parsed arguments.
        sources: Sources to read instead of those of the arguments.
        **changes: Fields that differ from the flags.

    Raises:
        ConfigError: A schema or a source cannot be one.
    """
    source_names = list(args.sources if sources is None else sources)
    if not all(source.strip() for source in source_names):
        raise ConfigError("'' is not a data set. Give a file, a directory, or a name on the hub.")
    if args.row_schema is not None and args.row_schema not in args.schemas:
        raise unknown("data.row_schema", args.row_schema, args.schemas, "Leave it out: the columns decide.")
    fields = {
        "prompt_dataset": source_names,
        "row_schema": args.row_schema,
        "input_key": args.input_key,
        "label_key": args.label_key,
        "prompt_split": args.split,
        "max_samples": args.max_samples,
        "on_bad_row": args.on_bad_row,
    }
    return Data(**{**fields, **changes})


def files_of(args: argparse.Namespace) -> list[Path]:
    """Return the files behind the sources. None of them may be written."""
    from ...data.rows import files_read

    cfg = data_of(args)
    return [file for source in cfg.datasets for file in files_read(source, cfg.prompt_split)]


@contextmanager
def counting(description: str) -> Iterator[Callable[[], None]]:
    """Show a progress bar on standard error; yield a function to call for each row."""
    from rich.console import Console

    from ...telemetry.progress import bar

    done = 0
    with bar(description, None, Console(stderr=True)) as advance:

        def tick() -> None:
            nonlocal done
            done += 1
            if done % EVERY == 0:
                advance(EVERY, f"{done:,} rows")

        yield tick


def counted(
    rows: Iterable[T], tick: Callable[[], None] = lambda: None, at_end: Callable[[int], None] = lambda count: None
) -> Iterator[T]:
    """Yield the rows, calling `tick` for each, and `at_end` with their number."""
    count = 0
    for row in rows:
        count += 1
        tick()
        yield row
    at_end(count)


def tell(bad: BadRows) -> None:
    """Print the bad rows that were left out, one line each."""
    for line in bad.listed:
        print(f"  bad: {line}")
    if bad.count > len(bad.listed):
        print(f"  and {bad.count - len(bad.listed)} more bad rows")
