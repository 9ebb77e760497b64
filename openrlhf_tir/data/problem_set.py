"""The problems of a run's data sets, each stored once however often it is repeated.

    rows of all data sets -> problem_set(): checked problems -> distinct problems, and the problem of every row

DAPO-Math-17k is 17,398 problems in 1.79 million rows. A row stays a row: a problem is drawn as often as it is in the
data. Checks, rendering and tokenising are done once for each problem.
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
"""Columns of the stored problems."""
READ_BY = ("prompt_split", "input_key", "label_key", "row_schema", "max_samples", "on_bad_row", "ANY_COLUMNS")
"""What of [data] decides which problems are read."""
PROBLEMS = "problems.arrow"
PLACES = "places.npy"
BAD = "bad.json"
EXTRA = "extra.arrow"
EXTRA_PLACES = "extra_places.npy"


class Problem(NamedTuple):
    """A checked row before its prompt is rendered.

    Attributes:
        where: File and line of the row, for messages.
        input: A text, or a list of chat messages.
        label: The label; "" if the row has none and needs none.
        env: The environment that the row names, or None.
        meta: What the environment gets.
        dataset: Place of its data set in data.prompt_dataset.
        extra: The other columns of the row (extra_columns.py); for a distinct problem, those of its first row.
        left_out: The columns that do not travel -> the reason.
    """

    where: str
    input: Any
    label: str
    env: str | None
    meta: dict[str, Any]
    dataset: int = 0
    extra: Mapping[str, Any] = {}
    left_out: Mapping[str, str] = {}


Read = Callable[[BadRows], Iterator[Problem]]
"""Reads the problems of all rows in order, and passes the rows that it leaves out to the BadRows."""


class RowExtras(NamedTuple):
    """The other columns of rows whose problem appeared before with other values in them.

    Attributes:
        rows: One JSON text each.
        places: [rows of the data] int32, index into `rows`; -1 for a row whose columns are those of its problem.
    """

    rows: Sequence[str]
    places: np.ndarray


class ProblemSet(NamedTuple):
    """The problems of all rows.

    Attributes:
        distinct: Distinct problems, in the order of their first row.
        places: [rows] int32, index of each row's problem in `distinct`.
        extras: The rows' own other columns.
        digest: Digest of the content, settings and code that it was made from; None if nothing is cached.
    """

    distinct: StoredRows[Problem]
    places: np.ndarray
    extras: RowExtras
    digest: str | None

    def counts(self) -> np.ndarray:
        """Return how many rows each distinct problem has: [distinct] int64."""
        return np.bincount(self.places, minlength=len(self.distinct))

    def dataset_of(self) -> np.ndarray:
        """Return the place of each distinct problem's data set in data.prompt_dataset: [distinct] int32."""
        return self.distinct.column("dataset").cast("int32").to_numpy()


def _text(row: tuple[Any, ...]) -> str:
    return row[0]


def _decoded(row: tuple[Any, ...]) -> Problem:
    where, input_text, label, env, meta, dataset, extra, left_out = row
    problem = Problem(where, json.loads(input_text), label, env, json.loads(meta), int(dataset), json.loads(extra))
    return problem._replace(left_out=json.loads(left_out))


def problem_set(cfg: Data, bad: BadRows, read: Read, in_prompt: Sequence[str], *, labels: bool = True) -> ProblemSet:
    """Read the problems of all data sets, or take them from the cache.

    Args:
        cfg: The [data] section.
        bad: Gets the rows that are left out, as if they had just been read.
        read: Reads the rows of the data sets, if the cache does not have them.
        in_prompt: The other columns that prompts are made of: rows that differ in them are different problems.
        labels: Whether every row must have a label.

    Raises:
        ConfigError: A data set, split or column does not exist.
        DataError: A row is bad and data.on_bad_row is "error".
    """

    def write(building: Path) -> None:
        counted = BadRows(bad.on, bad.most)
        _, places, extras = _written(read(counted), in_prompt, building)
        np.save(building / PLACES, places)
        np.save(building / EXTRA_PLACES, extras.places)
        (building / BAD).write_text(json.dumps([counted.count, counted.listed]))

    entry = _entry(cfg, in_prompt, labels)
    directory = entry.existing() or entry.make(write)
    if directory is None:
        return ProblemSet(*_written(read(bad), in_prompt, None), None)
    bad.add(*json.loads((directory / BAD).read_text()))
    places = np.load(directory / PLACES, mmap_mode="r")
    extras = RowExtras(StoredRows(directory / EXTRA, _text), np.load(directory / EXTRA_PLACES, mmap_mode="r"))
    return ProblemSet(StoredRows(directory / PROBLEMS, _decoded), places, extras, entry.digest)


def _entry(cfg: Data, in_prompt: Sequence[str], labels: bool) -> Entry:
    digests = [source_digest(source, cfg.prompt_split) for source in cfg.datasets]
    settings = {name: getattr(cfg, name) for name in READ_BY}
    cacheable = any(digests) and all(digests)
    made_from = [cfg.datasets, digests, settings, in_prompt, labels]
    return Entry(cache_directory() if cacheable else None, "problems", made_from)


def _written(
    problems: Iterator[Problem], in_prompt: Sequence[str], directory: Path | None
) -> tuple[StoredRows[Problem], np.ndarray, RowExtras]:
    """Write each distinct problem once; return them with the place of each row's problem and the rows' own columns."""
    places, extra_places = array("i"), array("i")
    extra_of_place = array("Q")  # a hash of each distinct problem's columns, in place of their text
    place_of: dict[bytes, int] = {}
    with (
        RowWriter(directory and directory / PROBLEMS, COLUMNS) as writer,
        RowWriter(directory and directory / EXTRA, ("extra",)) as extra_writer,
    ):
        for problem in problems:
            given = json.dumps(problem.input, ensure_ascii=False)
            meta, extra, left_out = (
                json.dumps(table, ensure_ascii=False) if table else "{}"
                for table in (problem.meta, problem.extra, problem.left_out)
            )
            # Rows that differ in other columns are the same problem, unless its prompt is made of these.
            shown = {name: problem.extra[name] for name in in_prompt if name in problem.extra}
            same = json.dumps([*problem.extra, shown], ensure_ascii=False)
            content = "\0".join((given, problem.label, problem.env or "", meta, str(problem.dataset), same, left_out))
            digest = xxhash.xxh3_128_digest(content.encode())
            hashed = xxhash.xxh3_64_intdigest(extra.encode())
            place = place_of.get(digest)
            own = -1
            if place is None:
                row = (problem.where, given, problem.label, problem.env, meta, str(problem.dataset), extra, left_out)
                place = place_of[digest] = writer.append(row)
                extra_of_place.append(hashed)
            elif extra_of_place[place] != hashed:
                own = extra_writer.append((extra,))
            places.append(place)
            extra_places.append(own)
    extras = RowExtras(StoredRows(extra_writer.source, _text), _numbers(extra_places))
    return StoredRows(writer.source, _decoded), _numbers(places), extras


def _numbers(values: array[int]) -> np.ndarray:
    return np.frombuffer(values, np.int32) if len(values) else np.zeros(0, np.int32)
