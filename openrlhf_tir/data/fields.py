"""Read fields of a row in another schema. A missing field or a wrong type is a DataError with file, line and field."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..config.paths import shorten, shown
from ..errors import DataError

BY_SCHEMA = "set data.row_schema to what the rows are"
"""The remedy for a row that does not have its schema. A command without that setting replaces this text."""
_MISSING = object()


def kind(value: Any) -> str:
    """Return a value and its type, for messages."""
    return f"{shown(value, 60)} ({type(value).__name__})"


def field(where: str, row: Mapping[str, Any], path: str, wanted: type, what: str) -> Any:
    """Return row[a][b] for the path a.b.

    Args:
        where: The row, for messages.
        row: The row.
        path: Names of the fields, joined by dots.
        wanted: The type of the value.
        what: The type in words.

    Raises:
        DataError: The field is missing or has another type.
    """
    value: Any = row
    path_so_far = ""
    for part in path.split("."):
        if not isinstance(value, Mapping):
            raise DataError(
                f"{where}: {path_so_far} is {kind(value)}, not an object with {part!r}. Correct or remove the row."
            )
        path_so_far = f"{path_so_far}.{part}" if path_so_far else part
        if part not in value:
            columns = shorten(", ".join(map(str, value)))
            raise DataError(
                f"{where} has no field {path_so_far!r}, {what}. It has: {columns}. Fill it in, or {BY_SCHEMA}."
            )
        value = value[part]
    if not isinstance(value, wanted):
        raise DataError(f"{where}: {path} is {kind(value)}, not {what}. Correct or remove the row.")
    return value


def text_of(where: str, row: Mapping[str, Any], path: str) -> str:
    """Return a text field that is not empty. Raises DataError."""
    value: str = field(where, row, path, str, "text")
    if not value.strip():
        raise DataError(f"{where}: {path} is empty. Fill it in or remove the row.")
    return value


def names_of(where: str, tools: Sequence[Any]) -> set[str]:
    """Return the names of a row's tools. Raises DataError if one has none."""
    for number, tool in enumerate(tools):
        if not isinstance(tool, Mapping) or not isinstance(tool.get("name"), str):
            raise DataError(
                f"{where}: tools[{number}] is {kind(tool)}, no function with a name. Correct or remove the row."
            )
    return {tool["name"] for tool in tools}


def json_list(where: str, row: Mapping[str, Any], name: str) -> list[Any]:
    """Return a list that is written as such or as JSON text, encoded once or twice. An object is a list of one.

    Raises:
        DataError: The value is neither a list nor JSON of one.
    """
    value = row.get(name, _MISSING)
    if value is _MISSING:
        field(where, row, name, list, "a JSON list")
    for _ in range(2):
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as e:
                raise DataError(f"{where}: {name} is no JSON: {shorten(str(e))}. Correct or remove the row.") from None
    value = [value] if isinstance(value, dict) else value
    if not isinstance(value, list):
        raise DataError(f"{where}: {name} is {kind(value)}, not a JSON list. Correct or remove the row.")
    return value
