"""The columns of a row besides its prompt, which rewards and environments get as `Task.extra`.

    {"prompt": ..., "reward_model": {...}, "extra_info": {...}, "image": b"..."}
        ->  extra     {"reward_model": {...}, "extra_info": {...}}
            left out  {"image": "bytes ..."}

Rewards run in other processes and environments behind HTTP, so a value must be one that JSON can hold. Values that
cannot travel are counted by column, and the checks before a run report them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from ..errors import DataError
from . import checks

MAX_CHARS = 2 << 20
"""Characters of JSON that the extra columns of one row may have together, because a server accepts requests of 4
MiB."""
IN_META = ("meta", "datasource")
"""Columns that are already in `Task.meta`."""
NAN_AS_NULL = "NaN, which JSON cannot hold: given as null"


class Extra(NamedTuple):
    """The columns of one row that travel, and the reason for each of the others."""

    columns: dict[str, Any]
    left_out: dict[str, str]


def extra_of(row: Mapping[Any, Any], without: Collection[str], meta: Mapping[str, Any]) -> Extra:
    """Return the columns of a row that rewards and environments get besides prompt, label and meta.

    Args:
        row: The row as it is in the file.
        without: Columns that reach a task in another way: its prompt, its environment's name.
        meta: What the row's schema put into `Task.meta`; a column with an equal entry there is not repeated.
    """
    columns: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    room = MAX_CHARS
    for name, value in row.items():
        if name in without or name in IN_META or (name in meta and meta[name] == value):
            continue
        if isinstance(value, float) and math.isnan(value):  # pandas writes NaN for a missing value.
            columns[str(name)] = None
            left_out[str(name)] = NAN_AS_NULL
            continue
        try:
            checks.text(str(name), "", "column")
            text = json.dumps(checks.json_value(_plain(value), "", str(name)), ensure_ascii=False)
        except DataError as error:
            left_out[_shown(name)] = _reason(value, error)
            continue
        if len(text) > room:
            left_out[str(name)] = f"more than is left of {MAX_CHARS >> 20} MiB for the columns of one row"
            continue
        room -= len(text)
        columns[str(name)] = json.loads(text)
    return Extra(columns, left_out)


def _plain(value: Any) -> Any:
    """Return numpy arrays and scalars as lists and numbers; other values as they are."""
    to_list = getattr(value, "tolist", None)
    return to_list() if callable(to_list) else value


def _shown(name: Any) -> str:
    """Return a column's name as text that can be printed."""
    return str(name).encode("utf-8", "backslashreplace").decode()


def _reason(value: Any, error: DataError) -> str:
    """Return why a value cannot travel, in a few words that are the same for all rows of a column."""
    if isinstance(value, bytes | bytearray | memoryview):
        return "bytes, which JSON cannot hold"
    if isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes):
        return "a picture or a sound (an object with bytes), which JSON cannot hold"
    if type(value).__module__.partition(".")[0] == "PIL":
        return "a picture, which JSON cannot hold"
    if isinstance(value, dict | list | tuple | str | int | float):
        return "a value in it that JSON cannot hold"
    return f"a {type(value).__name__}, which JSON cannot hold"


def sentences_of(left_out: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return a sentence for each column that does not travel as it is.

    Args:
        left_out: Column -> reason -> number of rows.
    """
    return [
        f"column {name!r} of {rows} rows does not reach rewards and environments as it is: {reason}."
        " Convert it to text or numbers if something reads it"
        for name, reasons in left_out.items()
        for reason, rows in reasons.items()
    ]
