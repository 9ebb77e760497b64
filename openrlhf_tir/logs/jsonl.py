"""Append-only JSON lines: rows -> file -> rows, safe against a writer that was killed in the middle of a line.

One row is one `write` on an O_APPEND descriptor, so several processes of one machine may share a file. Only the last line can be
torn, by a kill; opening for append cuts it, reading ignores it. A broken line anywhere else is a fault and is reported.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import DataError


class JsonlWriter:
    """Appends rows to `path`; creates it and its directory. A row is on disk (in the page cache) when `write` returns."""

    def __init__(self, path: Path):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        cut_torn_line(self.path)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, row: Mapping[str, Any]) -> None:
        os.write(self._fd, (json.dumps(row, allow_nan=False) + "\n").encode())

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def finite(value: Any) -> float | None:
    """A metric as JSON can hold it: NaN and infinity become None, numpy and torch scalars become floats."""
    number = float(value)
    return number if math.isfinite(number) else None


def cut_torn_line(path: Path) -> None:
    """Drop what follows the last newline. Does nothing when the file is missing, empty or whole."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole != len(data):
        os.truncate(path, whole)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All rows; [] when the file does not exist. DataError names file and line of a row that is no JSON object."""
    if not path.exists():
        return []
    data = path.read_bytes()
    lines = data[: data.rfind(b"\n") + 1].decode().split("\n")[:-1]
    return [_parse(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]


def replace_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Rewrite the whole file in one atomic rename."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.replace(temporary, path)


def _parse(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as fault:
        raise DataError(f"{path}:{number} is not JSON ({fault.msg}): {line[:80]!r}. Remove the line, or the file if it is not ours.") from fault
    if not isinstance(row, dict):
        raise DataError(f"{path}:{number} holds {line[:80]!r}, not a JSON object. Remove the line.")
    return row
