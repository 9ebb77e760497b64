"""Files of JSON lines that are only appended to, safe against a writer that is killed in a line and against a full
disk.

    whole_lines, cut_torn_line    for every reader of such a file: only the last line can be torn, by a kill. It is
                                  ignored, or cut before appending.
    JsonlWriter                   Writes one row by one `write` on an O_APPEND descriptor. Raises OSError.
    PatientWriter                 The same for what only people read: if the disk refuses, it logs that once and rows
                                  wait in memory.
    read_rows, replace_rows       Whole files.

A line in the middle that is not a row (an editor, a bad disk) is left out by `read_rows`, with a warning; `set_aside`
moves it to FILE.garbled.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from ..machine.files import replace_text

log = logging.getLogger(__name__)

BLOCK = 1 << 20
"""Bytes that are read at once while looking for the last newline."""
KEPT_ROWS = 10_000
"""Rows that wait in memory while the disk refuses: a few MB."""


class JsonlWriter:
    """Appends rows to a file, which it creates with its directory.

    A row is in the page cache when `write` returns. `write` raises OSError if it is not.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        cut_torn_line(self.path)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._torn = False

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a row. Raises OSError."""
        self.write_line((json.dumps(row, allow_nan=False) + "\n").encode())

    def write_line(self, line: bytes) -> None:
        """Append a line that ends with a newline.

        A full disk takes a part of the line. The next line then starts with a newline, because other processes may have
        appended meanwhile.

        Raises:
            OSError: The disk did not take the whole line.
        """
        written = os.write(self._fd, b"\n" + line if self._torn else line)
        size = len(line) + self._torn
        self._torn = 0 < written < size or (self._torn and written == 0)
        if written < size:
            raise OSError(
                28,
                f"No space left on device for the rest of a line ({written} of {size} bytes were written)",
                str(self.path),
            )

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class PatientWriter:
    """Appends rows that only people read, and never raises OSError.

    Rows that the disk refuses wait in memory, the last KEPT_ROWS of them, and are tried again with the next row.
    Threads may share a writer: an actor writes its groups in threads of their own.

    Attributes:
        path: The file.
        lost: Number of rows that were given up.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        self.lost = 0
        self._waiting: deque[bytes] = deque()
        self._writer: JsonlWriter | None = None
        self._refused = False
        self._lock = Lock()
        self._flush()

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a row, now or later."""
        line = (json.dumps(row, allow_nan=False) + "\n").encode()
        with self._lock:
            self._waiting.append(line)
            if len(self._waiting) > KEPT_ROWS:
                self._waiting.popleft()
                self.lost += 1
            self._flush()

    def _flush(self) -> None:
        try:
            self._writer = self._writer or JsonlWriter(self.path)
            while self._waiting:
                self._writer.write_line(self._waiting[0])
                self._waiting.popleft()
        except OSError as error:
            if not self._refused:
                log.warning(
                    "%s cannot be written (%s). Training continues; the last %d rows wait in memory. Free disk space.",
                    self.path,
                    error,
                    KEPT_ROWS,
                )
            self._refused = True
            return
        if self._refused:
            log.warning("%s is written again. Rows lost meanwhile: %d.", self.path, self.lost)
            self._refused = False

    def close(self) -> None:
        """Write the waiting rows if the disk takes them, and close the file."""
        with self._lock:
            self._flush()
            if self._waiting:
                self.lost += len(self._waiting)
                log.warning("%s lacks %d rows: the disk refused them to the end.", self.path, self.lost)
                self._waiting.clear()
            if self._writer:
                self._writer.close()


def finite(value: Any) -> float | None:
    """Return a metric as JSON can hold it: NaN and infinity become None, numpy and torch scalars become floats."""
    number = float(value)
    return number if math.isfinite(number) else None


def cut_torn_line(path: Path) -> int:
    """Remove what follows the last newline, and return the number of removed bytes.

    Only the end of the file is read. Does nothing if the file is missing, empty or whole.
    """
    if not path.exists():
        return 0
    with path.open("rb") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - BLOCK)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
    if end < size:
        os.truncate(path, end)
    return size - end


def whole_lines(path: Path, start: int = 0) -> Iterator[bytes]:
    """Yield the lines from byte `start` on, each with its newline. A torn last line is left out."""
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield line


def read_rows(path: Path, valid: Callable[[dict[str, Any]], bool] = lambda row: True) -> list[dict[str, Any]]:
    """Return all rows; [] if the file does not exist.

    Args:
        path: The file.
        valid: Returns True for a JSON object that is a row of this file. Other lines are left out, with a warning.
    """
    rows, garbled = _read_and_sort(path, valid)
    if garbled:
        number, line = garbled[0]
        others = len(garbled) - 1
        log.warning(
            "%s:%d holds %r, which is not a row of this file. It is left out%s.",
            path,
            number,
            line[:80],
            f", and so are {others} more" if others else "",
        )
    return rows


def set_aside(path: Path, valid: Callable[[dict[str, Any]], bool]) -> tuple[list[dict[str, Any]], int]:
    """Move the lines that are not rows to FILE.garbled.

    Returns:
        The rows, and the number of lines that were moved.
    """
    rows, garbled = _read_and_sort(path, valid)
    if garbled:
        garbled_path = path.with_name(path.name + ".garbled")
        with garbled_path.open("ab") as file:
            file.writelines(line for _, line in garbled)
        replace_rows(path, rows)
        log.warning(
            "%s: %d lines are not rows of this file; the first is line %d. They were moved to %s.",
            path,
            len(garbled),
            garbled[0][0],
            garbled_path.name,
        )
    return rows, len(garbled)


def _read_and_sort(
    path: Path, valid: Callable[[dict[str, Any]], bool]
) -> tuple[list[dict[str, Any]], list[tuple[int, bytes]]]:
    """Return the rows, and (line number from 1, line) of every other line. Blank lines are skipped."""
    rows, garbled = [], []
    for number, line in enumerate(whole_lines(path) if path.exists() else (), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # not JSON, or not UTF-8
            row = None
        if isinstance(row, dict) and valid(row):
            rows.append(row)
        else:
            garbled.append((number, line))
    return rows, garbled


def replace_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Replace the file by one with these rows."""
    replace_text(path, "".join(json.dumps(row) + "\n" for row in rows))
