"""The prompts of a run: a task for every row, with each distinct task stored once.

    distinct problems, rendered and measured -> stored_prompts() -> PromptSet

The tasks are in an Arrow file that is mapped into memory; a Task is created when it is read. So the driver of a run on
millions of rows holds little more than four bytes for each of them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..machine.files import replace_text
from ..types import Chat, Task
from .bad_rows import BadRows
from .cache import Entry
from .problem_set import ProblemSet, RowExtras
from .stored_rows import RowWriter, StoredRows

COLUMNS = ("prompt", "label", "env", "meta", "chat", "row", "extra")
TASKS = "tasks.arrow"
PLACES = "places.npy"
ROWS = "rows.npy"
FACTS = "facts.json"
MEMO = "memo.json"
TOO_LONG = "prompt_too_long"
BAD_ROW = "bad_row"
RECENT_TASKS = 1024
"""Tasks that stay in memory: those of the groups under way."""

Prepared = Iterator[tuple[int, Task, bool]]
"""(place of the problem, its task, whether the prompt is short enough)."""


class StoredTasks(Sequence[Task]):
    """The tasks of all rows, created when they are read.

    Args:
        rows: The distinct tasks.
        places: [rows] int32, the distinct task of each row.
        extras: The rows' own other columns.
        directory: The cache entry, if there is one.
    """

    def __init__(self, rows: StoredRows[Task], places: np.ndarray, extras: RowExtras, directory: Path | None) -> None:
        self.rows = rows
        self.places = places
        self.extras = extras
        self._directory = directory
        self._made: Callable[[int, int], Task] = lru_cache(RECENT_TASKS)(self._make)

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredTasks, (self.rows, self.places, self.extras, self._directory)

    def _make(self, place: int, own: int) -> Task:
        task = self.rows[place]
        return task if own < 0 else replace(task, extra=json.loads(self.extras.rows[own]))

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        return self._made(int(self.places[i]), int(self.extras.places[i]))

    def remembered(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return the result of `compute`, a JSON value, which is kept beside the cached tasks under `name`."""
        memo: dict[str, Any] = {}
        path = self._directory and self._directory / MEMO
        if path and path.is_file():
            memo = json.loads(path.read_text())
        if name not in memo:
            memo[name] = compute()
            if path:
                with suppress(OSError):  # The cache belongs to another user, so the next start computes it again.
                    replace_text(path, json.dumps(memo))
        return memo[name]


def _decoded(row: tuple[Any, ...]) -> Task:
    """Return the task of a stored row."""
    prompt, label, env, meta, chat, name, extra = row
    chat_value = None
    if chat is not None:
        messages, tools, of_text = json.loads(chat)
        chat_value = Chat(tuple(messages), tuple(tools), of_text)
    return Task(prompt, label, env, json.loads(meta), chat=chat_value, row=name, extra=json.loads(extra))


def _row(task: Task) -> tuple[str | None, ...]:
    chat = None
    if task.chat is not None:
        chat = json.dumps([task.chat.messages, task.chat.tools, task.chat.of_text], ensure_ascii=False)
    meta = json.dumps(task.meta, ensure_ascii=False)
    extra = json.dumps(task.extra, ensure_ascii=False)
    return task.prompt, task.label, task.env, meta, chat, task.row, extra


@dataclass(slots=True)
class PromptSet:
    """The tasks of a run.

    Attributes:
        tasks: The tasks; the index of a task is `GroupKey.prompt`.
        dropped: Reason -> number of rows that were left out.
        dataset_of: For each task the place of its data set in data.prompt_dataset, which only blends of several need.
    """

    tasks: Sequence[Task]
    dropped: dict[str, int] = field(default_factory=dict)
    dataset_of: Sequence[int] | np.ndarray = ()

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, i: int) -> Task:
        return self.tasks[i]

    def envs(self) -> tuple[list[str], np.ndarray]:
        """Return the names of the environments, and the index of each task's environment: [tasks] int."""
        if isinstance(self.tasks, StoredTasks):
            encoded = self.tasks.rows.column("env").combine_chunks().dictionary_encode()
            return encoded.dictionary.to_pylist(), encoded.indices.to_numpy()[self.tasks.places]
        names = list(dict.fromkeys(task.env for task in self.tasks))
        numbers = {name: number for number, name in enumerate(names)}
        return names, np.array([numbers[task.env] for task in self.tasks], int)


def stored_prompts(entry: Entry, found: ProblemSet, prepare: Callable[[BadRows], Prepared], bad: BadRows) -> PromptSet:
    """Prepare the distinct prompts, or take them from the cache, and lay them out by row.

    Args:
        entry: The cache entry.
        found: The problems of all rows.
        prepare: Yields the task of each problem, and passes problems without a task to the BadRows.
        bad: Gets the rows that are left out here.
    """

    def write(building: Path) -> None:
        counted = BadRows(bad.on, bad.most)
        _, task_places, rows, too_long = _written(prepare(counted), building / TASKS, found)
        np.save(building / PLACES, task_places)
        np.save(building / ROWS, rows)
        (building / FACTS).write_text(json.dumps([counted.count, counted.listed, too_long]))

    directory = entry.existing() or entry.make(write)
    if directory is None:
        stored, task_places, rows, too_long = _written(prepare(bad), None, found)
    else:
        stored = StoredRows(directory / TASKS, _decoded)
        task_places, rows = (np.load(directory / name, mmap_mode="r") for name in (PLACES, ROWS))
        count, listed, too_long = json.loads((directory / FACTS).read_text())
        bad.add(count, listed)
    dropped = Counter({BAD_ROW: bad.count, TOO_LONG: too_long})
    extras = RowExtras(found.extras.rows, found.extras.places[rows])
    dataset_of = found.dataset_of()[found.places[rows]]
    return PromptSet(StoredTasks(stored, task_places, extras, directory), dict(+dropped), dataset_of)


def _written(
    prepared: Prepared, path: Path | None, found: ProblemSet
) -> tuple[StoredRows[Task], np.ndarray, np.ndarray, int]:
    """Write the tasks that fit.

    Returns:
        The tasks, the task of each remaining row, the remaining rows, and the number of rows that were too long.
    """
    stored_at = np.full(len(found.distinct), -1, np.int32)
    too_long = np.zeros(len(found.distinct), bool)
    with RowWriter(path, COLUMNS) as writer:
        for place, task, fits in prepared:
            if fits:
                stored_at[place] = writer.append(_row(task))
            else:
                too_long[place] = True
    by_row = stored_at[found.places]
    rows = np.flatnonzero(by_row >= 0).astype(np.int32)
    return StoredRows(writer.source, _decoded), by_row[rows], rows, int(too_long[found.places].sum())
