"""Identify a row, and a run's data, in whatever file, format or order they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import xxhash

from ..types import Task
from .prompt_set import StoredTasks

REPEATED_TASKS = 20_000
"""Distinct tasks whose texts are kept while rows are digested, so that a repeated row costs a lookup."""
ROWS_AT_ONCE = 65_536


def row_id(input_value: Any, label: str) -> str:
    """Return 16 hexadecimal digits (XXH3-64) of a row's input (text or chat messages) and label.

    Two rows that agree in both are the same problem.
    """
    return xxhash.xxh3_64_hexdigest(json.dumps([input_value, label], ensure_ascii=False, sort_keys=True).encode())


def tasks_digest(tasks: Sequence[Task], name: str, part: Callable[[Task], Any]) -> str:
    """Return a digest of `part` of every task, in order.

    Args:
        tasks: The tasks.
        name: Name of the part, under which the digest of cached tasks is kept.
        part: Returns the part of a task.
    """

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
        hashing.update(f"{i} {tasks.extras.rows[places[i]]}".encode())
    return hashing.hexdigest()


def _texts(tasks: Sequence[Task], part: Callable[[Task], Any]) -> Iterator[bytes]:
    if not isinstance(tasks, StoredTasks):
        yield from (json.dumps(part(task), default=repr).encode() for task in tasks)
        return
    rows = tasks.rows
    text_of = lru_cache(REPEATED_TASKS)(lambda place: json.dumps(part(rows[place]), default=repr).encode())
    for start in range(0, len(tasks), ROWS_AT_ONCE):
        yield from map(text_of, tasks.places[start : start + ROWS_AT_ONCE].tolist())
