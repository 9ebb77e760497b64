"""Identity: what names a row, and what names a run's data, whatever file, format or order they are found in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import xxhash

from ..types import Task
from .prompt_set import StoredTasks, task_of

REPEATED_TASKS = 20_000
"""Distinct tasks whose texts are kept while the rows are digested: a repeated row then costs a lookup."""
ROWS_AT_ONCE = 65_536


def row_id(given: Any, label: str) -> str:
    """16 hexadecimal digits (XXH3-64) of the input, text or chat messages, and the label. Two rows with both the same
    are the same problem."""
    return xxhash.xxh3_64_hexdigest(json.dumps([given, label], ensure_ascii=False, sort_keys=True).encode())


def tasks_digest(tasks: Sequence[Task], name: str, part: Callable[[Task], Any]) -> str:
    """Return a digest of `part` of every task, in order. `name` says which part; by it the digest is kept with tasks
    that are in the cache."""

    def computed() -> str:
        hashing = xxhash.xxh3_128()
        for text in _texts(tasks, part):
            hashing.update(text)
        return hashing.hexdigest()

    return tasks.remembered(name, computed) if isinstance(tasks, StoredTasks) else computed()


def columns_digest(tasks: Sequence[Task]) -> str:
    """Return a digest of the other columns of every task, in order."""
    of_tasks = tasks_digest(tasks, "columns", lambda task: sorted(task.extra.items()))
    if not isinstance(tasks, StoredTasks):
        return of_tasks
    hashing = xxhash.xxh3_128(of_tasks.encode())
    places = tasks.extras.places
    for i in np.flatnonzero(places >= 0):
        hashing.update(f"{i} {tasks.extras.rows[places[i]][0]}".encode())
    return hashing.hexdigest()


def _texts(tasks: Sequence[Task], part: Callable[[Task], Any]) -> Iterator[bytes]:
    if not isinstance(tasks, StoredTasks):
        yield from (json.dumps(part(task), default=repr).encode() for task in tasks)
        return
    rows = tasks.rows
    text_of = lru_cache(REPEATED_TASKS)(lambda place: json.dumps(part(task_of(rows[place])), default=repr).encode())
    for start in range(0, len(tasks), ROWS_AT_ONCE):
        yield from map(text_of, tasks.places[start : start + ROWS_AT_ONCE].tolist())
