"""Convert rows of one schema to rows of another.

read   Tool-N1's sources (function_calls.py), or any schema of data/schemas.py  ->  problems
write  one row of official.py for each; for --to tooln1 with the columns that its own preprocessing keeps
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...config import Data
from ...config.paths import query_path
from ...errors import ConfigError, DataError
from .. import tool_n1
from ..bad_rows import Bad
from ..prompts import Problem, rows_and_problems
from ..rows import read_rows
from . import function_calls, official
from .augment import augmented

Raw = dict[str, Any]


class Augment(NamedTuple):
    """Settings of augment.py: shares of rows from 0 to 1, and the seed."""

    mask_names: float = 0.0
    irrelevant: float = 0.0
    seed: int = 0


def converted(
    cfg: Data,
    to: str,
    bad: Bad,
    left_out: Counter[str],
    augment: Augment | None = None,
    answers: Answers | None = None,
    env: str | None = None,
) -> Iterator[Any]:
    """Yield rows of the schema `to`.

    Args:
        cfg: The [data] section.
        to: The schema to write.
        bad: Gets malformed rows.
        left_out: Counts by reason what Tool-N1's filter drops.
        augment: Augmentation of Tool-N1's sources.
        answers: Fields that the rows lack.
        env: The environment of rows that name none.

    Raises:
        ConfigError: The schema is unknown.
        DataError: A row is malformed, and `bad` raises.
    """
    write = official.writer(to)
    for number, (problem, raw) in enumerate(_read(cfg, bad, left_out, augment, answers)):
        try:
            row = write(problem._replace(env=problem.env or env), number)
        except DataError as error:
            bad(error)
            continue
        yield {**row, **raw} if to == "tooln1" else row


def _read(
    cfg: Data, bad: Bad, left_out: Counter[str], augment: Augment | None, answers: Answers | None
) -> Iterator[tuple[Problem, Raw]]:
    source = function_calls.SOURCES.get(cfg.row_schema or "")
    if source is None:
        found = rows_and_problems(cfg, bad, lambda row: row if answers is None else answers.joined(row))
        yield from ((problem, {}) for _, problem in found)
        return
    places: list[str] = []

    def raws() -> Iterator[Raw]:
        for name in cfg.datasets:
            for where, row in itertools.islice(read_rows(name, cfg.prompt_split, bad), cfg.max_samples):
                try:
                    for raw in source(where, row, left_out):
                        places[:] = [where]
                        yield raw
                except DataError as error:
                    bad(error)

    rows = (
        augmented(raws(), mask_names=augment.mask_names, irrelevant=augment.irrelevant, seed=augment.seed)
        if augment
        else raws()
    )
    for raw in rows:
        try:
            messages, label = tool_n1.convert(places[0], raw)
        except DataError as error:
            bad(error)
            continue
        yield (
            Problem(places[0], messages, label, None, {"datasource": "toolcall"}),
            {**raw, "raw_system": tool_n1.EXPERT},
        )


class Answers:
    """The fields of a second file's rows, by id: BFCL keeps its answers in a separate file.

    Attributes:
        used: Number of rows that had one.
    """

    def __init__(self, path: Path, bad: Bad) -> None:
        """Read the file; `bad` gets its bad rows.

        Raises:
            ConfigError: There is no such file.
        """
        self.used = 0
        self._of: dict[str, Mapping[str, Any]] = {}
        if not query_path(path, Path.is_file, "--join"):
            raise ConfigError(f"--join {path}: there is no such file. Correct the path.")
        for where, row in read_rows(str(path), "train", bad):
            if not isinstance(row.get("id"), str):
                bad(DataError(f"{where} has no field 'id', text. It is what the files are joined by: fill it in."))
                continue
            if self._of.setdefault(row["id"], row) != row:
                bad(
                    DataError(f"{where} has the id {row['id']!r} of an earlier row and other fields. Keep one of them.")
                )

    def __len__(self) -> int:
        return len(self._of)

    def joined(self, row: Raw) -> Raw:
        """Return a row with the fields that it lacks. A field that holds null counts as lacking."""
        answer = self._of.get(str(row.get("id")), {})
        self.used += bool(answer)
        return {**row, **{name: value for name, value in answer.items() if row.get(name) is None}}
