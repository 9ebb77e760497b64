"""Store: the items of one set under one setting, on disk -> which problems are still to be sampled.

    DIR/settings.json    what they were made under; a directory with other settings is refused, so that figures never
                         mix two
    DIR/problems.jsonl   what was asked: the set's rows in our form
    DIR/items.jsonl      one row per problem, appended when its samples are there; a torn last line is cut off
    DIR/figures.json     written at the end

An item that lost samples to infrastructure is sampled again by the next run: its row is taken out first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..logs.jsonl import JsonlWriter, cut_torn_line, read_rows, replace_rows
from ..types import Task
from .items import ITEMS, Item, read_item
from .settings import differences

SETTINGS, PROBLEMS, FIGURES = "settings.json", "problems.jsonl", "figures.json"
MOST_SHOWN = 4
"""Differences of settings that a message names."""


class Store:
    """`done`: place of a problem -> its item, whole. Raises ConfigError for a directory that was made under other
    settings or of other problems."""

    def __init__(self, directory: Path, settings: Mapping[str, Any], tasks: list[Task]) -> None:
        self.directory, self.tasks = directory, tasks
        plain = json.loads(json.dumps(settings))
        self._check_settings(plain)
        self.done: dict[int, Item] = {}
        path = directory / ITEMS
        cut_torn_line(path)
        rows = read_rows(path)
        whole = []
        for number, row in enumerate(rows, 1):
            item = read_item(row, f"{path} row {number}")
            if not (0 <= item.index < len(tasks)) or tasks[item.index].row != item.row:
                raise ConfigError(
                    f"{path} row {number} is of problem {item.index} ({item.row}), which is another one now."
                    " Choose another --items directory."
                )
            if not item.lost and item.index not in self.done:
                self.done[item.index] = item
                whole.append(row)
        if len(whole) < len(rows):
            replace_rows(path, whole)
        self._writer = JsonlWriter(path)

    def _check_settings(self, settings: dict[str, Any]) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / SETTINGS
        if not path.exists():
            if (self.directory / ITEMS).exists():
                raise ConfigError(
                    f"{self.directory} has {ITEMS} and no {SETTINGS}, so nobody knows how its items were sampled."
                    " Remove the directory to sample again, or choose another --items directory."
                )
            _write(path, settings)
            return
        try:
            then = json.loads(path.read_text())
        except ValueError:
            raise ConfigError(
                f"{path} is not JSON. Remove the directory to sample again, or choose another --items directory."
            ) from None
        if found := differences(settings, then if isinstance(then, dict) else {}):
            more = f"; and {len(found) - MOST_SHOWN} more" if len(found) > MOST_SHOWN else ""
            raise ConfigError(
                f"{self.directory} holds items that were sampled under other settings"
                f" ({'; '.join(found[:MOST_SHOWN])}{more}). Choose another --items directory, or remove that one."
            )

    @property
    def left(self) -> list[int]:
        """Places of the problems that are still to be sampled, in order."""
        return [i for i in range(len(self.tasks)) if i not in self.done]

    def add(self, item: Item) -> None:
        """On disk when this returns. One that lost samples too: the next run takes it out and samples it again."""
        self._writer.write(item.as_row())
        self.done[item.index] = item

    @property
    def items(self) -> list[Item]:
        """In the order of the problems."""
        return [self.done[i] for i in sorted(self.done)]

    def finish(self, figures: Mapping[str, Any]) -> Path:
        path = self.directory / FIGURES
        _write(path, figures)
        return path

    def close(self) -> None:
        self._writer.close()


def _write(path: Path, value: Mapping[str, Any]) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n")
    os.replace(temporary, path)
