"""Fields of a row in another's schema: each is there and of its type, or a DataError says file, line and field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..config.paths import shorten, shown
from ..errors import DataError

BY_SCHEMA = "set data.row_schema to what the rows are"
"""What errors advise where a row is not its schema's; a command that has no such setting puts its own in its place."""
_MISSING = object()


def kind(value: Any) -> str:
    """A value and its type, for messages."""
    return f"{shown(value, 60)} ({type(value).__name__})"


def field(where: str, row: Mapping[str, Any], path: str, wanted: type, what: str) -> Any:
    """row[a][b] for the path a.b. Raises DataError unless it is a `wanted`; `what` says that in words."""
    node: Any = row
    done = ""
    for part in path.split("."):
        if not isinstance(node, Mapping):
            raise DataError(f"{where}: {done} is {kind(node)}, not an object with {part!r}. Correct or remove the row.")
        done = f"{done}.{part}" if done else part
        if part not in node:
            columns = shorten(", ".join(map(str, node)))
            raise DataError(f"{where} has no field {done!r}, {what}. It has: {columns}. Fill it in, or {BY_SCHEMA}.")
        node = node[part]
    if not isinstance(node, wanted):
        raise DataError(f"{where}: {path} is {kind(node)}, not {what}. Correct or remove the row.")
    return node


def text_of(where: str, row: Mapping[str, Any], path: str) -> str:
    """Text that is not empty."""
    value: str = field(where, row, path, str, "text")
    if not value.strip():
        raise DataError(f"{where}: {path} is empty. Fill it in or remove the row.")
    return value


def json_list(where: str, row: Mapping[str, Any], name: str) -> list[Any]:
    """A list, as one or as JSON text, encoded once or twice; a lone object is a list of one."""
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
