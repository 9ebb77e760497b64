"""The problems of a run's data sets, each stored once however often it is repeated.

    rows of all data sets -> problem_set(): checked problems -> distinct problems, and for every row which one it is

DAPO-Math-17k is 17,398 problems in 1.79 million rows. A row stays a row: it is drawn as often as it stands in the data.
What is done for each problem (checks, rendering, tokenising) is done once.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from ..config import Data
from .bad_rows import BadRows
from .cache import Entry, cache_directory, source_digest
from .stored_rows import RowWriter, StoredRows

COLUMNS = ("where", "input", "label", "env", "meta", "dataset", "extra", "left_out")
READ_BY = ("prompt_split", "input_key", "label_key", "row_schema", "env_key", "max_samples", "on_bad_row")
"""Settings of [data] that decide which problems are read."""
PROBLEMS, PLACES, BAD = "problems.arrow", "places.npy", "bad.json"


class Problem(NamedTuple):
    """A checked row before its prompt is rendered. `input` is text, or a list of chat messages; `env` is None where the
    row names none; `dataset` is the place of its data set in data.prompt_dataset; `label` is "" where the row has none
    and none is needed."""

    where: str
    input: Any
    label: str
    env: str | None
    meta: dict[str, Any]
    dataset: int = 0
    extra: Mapping[str, Any] = {}
    """The other columns of the row: extra_columns.py."""
    left_out: Mapping[str, str] = {}
    """The columns that do not travel, with the reason of each."""


Read = Callable[[Data, BadRows, bool], Iterator[Problem]]
"""Reads the problems of all rows in order. The last argument: whether every row must have a label."""


class ProblemSet(NamedTuple):
    """Distinct problems, in the order in which they appear first, and the place of each row's problem among them."""

    distinct: Sequence[Problem]
    places: np.ndarray
    """[rows] int32."""
    digest: str | None
    """Names the content, settings and code that it was made from; None where nothing is cached."""

    def counts(self) -> np.ndarray:
        """Return how many rows each distinct problem has, [distinct] int64."""
        return np.bincount(self.places, minlength=len(self.distinct))


class _Distinct(Sequence[Problem]):
    """Stored problems, decoded when they are asked for."""

    def __init__(self, rows: StoredRows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [_decoded(row) for row in self.rows[place]]
        return _decoded(self.rows[place])

    def __iter__(self) -> Iterator[Problem]:
        return map(_decoded, self.rows)


def _decoded(row: tuple[Any, ...]) -> Problem:
    where, given, label, env, meta, dataset, extra, left_out = row
    return Problem(
        where, json.loads(given), label, env, json.loads(meta), int(dataset), json.loads(extra), json.loads(left_out)
    )


def problem_set(cfg: Data, bad: BadRows, read: Read, *, labels: bool = True) -> ProblemSet:
    """Read the problems of all data sets, or take them from the cache.

    Args:
        bad: Is told of the rows that are left out, as if they had just been read.
        read: Reads the rows of the data sets where the cache does not have them.
        labels: Whether every row must have a label.

    Raises:
        ConfigError: A data set, split or column is not there.
        DataError: A row is bad and data.on_bad_row is "error".
    """
    entry = _entry(cfg, labels)
    directory = entry.existing()
    if directory is None:
        counted = BadRows(cfg.on_bad_row, bad.most)
        if entry.path is None:
            return _with_bad(bad, counted, *_written(read(cfg, counted, labels), None), None)

        def write(building: Path) -> None:
            _, places = _written(read(cfg, counted, labels), building / PROBLEMS)
            np.save(building / PLACES, places)
            (building / BAD).write_text(json.dumps([counted.count, counted.listed]))

        directory = entry.make(write)
        if directory is None:
            return problem_set(cfg.model_copy(update={"cache_dir": "off"}), bad, read, labels=labels)
    places = np.load(directory / PLACES, mmap_mode="r")
    counted = BadRows(cfg.on_bad_row, bad.most)
    counted.count, counted.listed = json.loads((directory / BAD).read_text())
    return _with_bad(bad, counted, StoredRows(directory / PROBLEMS), places, entry.digest)


def _entry(cfg: Data, labels: bool) -> Entry:
    directory = cache_directory(cfg.cache_dir)
    digests = [directory and source_digest(source, cfg.prompt_split) for source in cfg.datasets]
    settings = {name: getattr(cfg, name) for name in READ_BY}
    cached = directory if any(digests) and all(digests) else None
    return Entry(cached, "problems", [cfg.datasets, digests, settings, labels])


def _with_bad(bad: BadRows, counted: BadRows, rows: StoredRows, places: np.ndarray, digest: str | None) -> ProblemSet:
    bad.count += counted.count
    bad.listed += counted.listed[: bad.most - len(bad.listed)]
    return ProblemSet(_Distinct(rows), places, digest)


def _written(problems: Iterator[Problem], path: Path | None) -> tuple[StoredRows, np.ndarray]:
    """Write each distinct problem once; return them with the place of each row's problem."""
    places = array("i")
    place_of: dict[bytes, int] = {}
    with RowWriter(path, COLUMNS) as writer:
        for problem in problems:
            given = json.dumps(problem.input, ensure_ascii=False)
            meta = json.dumps(problem.meta, ensure_ascii=False) if problem.meta else "{}"
            extra = json.dumps(problem.extra, ensure_ascii=False) if problem.extra else "{}"
            left_out = json.dumps(problem.left_out, ensure_ascii=False) if problem.left_out else "{}"
            more = (str(problem.dataset), extra, left_out)
            content = "\0".join((given, problem.label, problem.env or "", meta, *more))
            digest = xxhash.xxh3_128_digest(content.encode())
            place = place_of.get(digest)
            if place is None:
                row = (problem.where, given, problem.label, problem.env, meta, *more)
                place = place_of[digest] = writer.append(row)
            places.append(place)
    return StoredRows(writer.source), np.frombuffer(places, np.int32) if len(places) else np.zeros(0, np.int32)
