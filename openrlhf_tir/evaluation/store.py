"""The items of one suite under one setting on disk, and which problems are still to be sampled.

    DIR/settings.json    the settings of the items; a directory with other settings is refused, so that figures never
                         mix two settings
    DIR/problems.jsonl   the suite's rows in this project's form
    DIR/items.jsonl      one row per problem, appended when its samples exist; a torn last line is cut off
    DIR/figures.json     written at the end

An item that lost samples to infrastructure is sampled again by the next run, which removes its row first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..machine.files import replace_text
from ..telemetry.jsonl import JsonlWriter, cut_torn_line, read_rows, replace_rows
from ..types import Task
from .items import ITEMS, Item, read_item
from .settings import differences

SETTINGS = "settings.json"
PROBLEMS = "problems.jsonl"
FIGURES = "figures.json"
MAX_SHOWN = 4
"""Differences of settings that a message names."""


class Store:
    """The items of one suite under one setting.

    Attributes:
        directory: Where they are.
        tasks: The suite's problems.
        done: Index of a problem -> its item without lost samples.
    """

    def __init__(self, directory: Path, settings: Mapping[str, Any], tasks: list[Task]) -> None:
        """Open or create a directory and read its complete items.

        Args:
            directory: The directory.
            settings: Everything that decides what an item is (`settings.made_under`).
            tasks: The suite's problems.

        Raises:
            ConfigError: The directory holds items of other settings or of other problems.
        """
        self.directory = directory
        self.tasks = tasks
        # Through JSON, so that tuples and other types compare equal to what the file holds.
        self._check_settings(json.loads(json.dumps(settings)))
        self.done: dict[int, Item] = {}
        path = directory / ITEMS
        cut_torn_line(path)
        rows = read_rows(path)
        complete = []
        for number, row in enumerate(rows, 1):
            item = read_item(row, f"{path} row {number}")
            if not (0 <= item.index < len(tasks)) or tasks[item.index].row != item.row:
                raise ConfigError(
                    f"{path} row {number} belongs to problem {item.index} ({item.row}), which is another problem now."
                    " Choose another --items directory."
                )
            if not item.lost and item.index not in self.done:
                self.done[item.index] = item
                complete.append(row)
        if len(complete) < len(rows):
            replace_rows(path, complete)
        self._writer = JsonlWriter(path)

    def _check_settings(self, settings: dict[str, Any]) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / SETTINGS
        if not path.exists():
            if (self.directory / ITEMS).exists():
                raise ConfigError(
                    f"{self.directory} has {ITEMS} but no {SETTINGS}, so the settings of its items are unknown."
                    " Remove the directory to sample again, or choose another --items directory."
                )
            _write(path, settings)
            return
        try:
            settings_before = json.loads(path.read_text())
        except ValueError:
            raise ConfigError(
                f"{path} is not JSON. Remove the directory to sample again, or choose another --items directory."
            ) from None
        changes = differences(settings, settings_before if isinstance(settings_before, dict) else {})
        if changes:
            more = f"; and {len(changes) - MAX_SHOWN} more" if len(changes) > MAX_SHOWN else ""
            raise ConfigError(
                f"{self.directory} holds items that were sampled under other settings"
                f" ({'; '.join(changes[:MAX_SHOWN])}{more}). Choose another --items directory, or remove that one."
            )

    @property
    def left(self) -> list[int]:
        """Indices of the problems that are still to be sampled, in order."""
        return [index for index in range(len(self.tasks)) if index not in self.done]

    def add(self, item: Item) -> None:
        """Append an item to the file, also one that lost samples: the next run samples it again."""
        self._writer.write(item.as_row())
        self.done[item.index] = item

    @property
    def items(self) -> list[Item]:
        """All items, in the order of the problems."""
        return [self.done[index] for index in sorted(self.done)]

    def finish(self, figures: Mapping[str, Any]) -> Path:
        """Write the figures and return their file."""
        path = self.directory / FIGURES
        _write(path, figures)
        return path

    def close(self) -> None:
        """Close the file of items."""
        self._writer.close()


def _write(path: Path, value: Mapping[str, Any]) -> None:
    replace_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")
