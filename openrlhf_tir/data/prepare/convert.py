"""Convert: rows of one schema -> rows of another.

read   Tool-N1's sources (function_calls.py), or any schema of data/schemas.py  ->  problems
write  one row of official.py for each; for --to tooln1 with the columns that its own preprocessing leaves in
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ...config import Data
from ...errors import DataError
from .. import tool_n1
from ..bad_rows import Bad
from ..json_rows import read_json
from ..prompts import Problem, rows_and_problems
from ..rows import read_rows
from . import function_calls, official
from .augment import augmented

Raw = dict[str, Any]


class Augment(NamedTuple):
    """Shares of rows, 0 to 1: augment.py."""

    mask_names: float = 0.0
    irrelevant: float = 0.0
    seed: int = 0


def converted(
    cfg: Data,
    to: str,
    bad: Bad,
    left_out: Counter[str],
    augment: Augment | None = None,
    answers: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[Any]:
    """Rows of the schema `to`. `answers`: id -> fields that a row lacks. What Tool-N1's filter drops is counted in
    `left_out`, by reason; a malformed row goes to `bad`.

    Raises ConfigError for an unknown schema, DataError as `bad` does.
    """
    write = official.writer(to)
    for i, (problem, raw) in enumerate(_read(cfg, bad, left_out, augment, answers or {})):
        try:
            row = write(problem, i)
        except DataError as e:
            bad(e)
            continue
        yield {**row, **raw} if to == "tooln1" else row


def _read(
    cfg: Data, bad: Bad, left_out: Counter[str], augment: Augment | None, answers: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[Problem, Raw]]:
    source = function_calls.SOURCES.get(cfg.row_schema or "")
    if source is None:
        found = rows_and_problems(cfg, bad, lambda row: _joined(row, answers.get(str(row.get("id")), {})))
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
                except DataError as e:
                    bad(e)

    rows = (
        augmented(raws(), mask_names=augment.mask_names, irrelevant=augment.irrelevant, seed=augment.seed)
        if augment
        else raws()
    )
    for raw in rows:
        try:
            messages, label = tool_n1.convert(places[0], raw)
        except DataError as e:
            bad(e)
            continue
        yield (
            Problem(places[0], messages, label, None, {"datasource": "toolcall"}),
            {**raw, "raw_system": tool_n1.EXPERT},
        )


def _joined(row: Raw, answer: Mapping[str, Any]) -> Raw:
    """A field that holds null is one that the row lacks."""
    return {**row, **{name: value for name, value in answer.items() if row.get(name) is None}}


def answers_of(path: Any, bad: Bad) -> dict[str, Mapping[str, Any]]:
    """id -> the fields of a second file's rows: BFCL keeps its answers apart."""
    found: dict[str, Mapping[str, Any]] = {}
    for where, row in read_json(path, bad):
        if not isinstance(row.get("id"), str):
            bad(DataError(f"{where} has no field 'id', text. It is what the files are joined by: fill it in."))
            continue
        if found.setdefault(row["id"], row) != row:
            bad(DataError(f"{where} has the id {row['id']!r} of an earlier row and other fields. Keep one of them."))
    return found
