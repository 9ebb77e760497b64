"""Append-only JSON lines: rows -> file -> rows, safe against a writer that was killed in the middle of a line, and
against a full disk.

    whole_lines, cut_torn_line    every reader of such a file: only the last line can be torn, by a kill; it is ignored,
                                  or cut before appending
    JsonlWriter                   one row is one `write` on an O_APPEND descriptor; raises OSError
    PatientWriter                 the same for what only people read: a disk that refuses is said once, rows wait for it
                                  in memory
    read_rows, replace_rows       whole files

A line in the middle that is no row (somebody's editor, a bad disk) is left out by `read_rows` and said; `set_aside`
moves it to FILE.garbled."""

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

log = logging.getLogger(__name__)

BLOCK = 1 << 20
KEPT_ROWS = 10_000
"""Rows that wait in memory for a disk that refuses: some MB."""


class JsonlWriter:
    """Appends rows to `path`; creates it and its directory. A row is in the page cache when `write` returns; OSError
    when it is not."""

    def __init__(self, path: Path):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        cut_torn_line(self.path)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._torn = False

    def write(self, row: Mapping[str, Any]) -> None:
        self.write_line((json.dumps(row, allow_nan=False) + "\n").encode())

    def write_line(self, line: bytes) -> None:
        """A full disk takes a part of the line. The next begins on its own: others may have appended meanwhile."""
        written = os.write(self._fd, b"\n" + line if self._torn else line)
        whole = len(line) + self._torn
        self._torn = 0 < written < whole or (self._torn and written == 0)
        if written < whole:
            raise OSError(
                28,
                f"No space left on device for the rest of a line ({written} of {whole} bytes were written)",
                str(self.path),
            )

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class PatientWriter:
    """Rows for people: what the disk refuses waits in memory, the last KEPT_ROWS of it, and is tried again with the
    next row. Never raises OSError.

    Threads may share one: an actor writes its groups in threads of their own.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        self.lost = 0
        """Rows that were given up."""
        self._waiting: deque[bytes] = deque()
        self._writer: JsonlWriter | None = None
        self._refused = False
        self._turn = Lock()
        self._flush()

    def write(self, row: Mapping[str, Any]) -> None:
        line = (json.dumps(row, allow_nan=False) + "\n").encode()
        with self._turn:
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
        except OSError as e:
            if not self._refused:
                log.warning(
                    "%s cannot be written (%s). Training goes on; rows wait in memory, the last %d of them. Make room.",
                    self.path,
                    e,
                    KEPT_ROWS,
                )
            self._refused = True
            return
        if self._refused:
            log.warning("%s is written again. Rows lost meanwhile: %d.", self.path, self.lost)
            self._refused = False

    def close(self) -> None:
        with self._turn:
            self._close()

    def _close(self) -> None:
        self._flush()
        if self._waiting:
            self.lost += len(self._waiting)
            log.warning("%s lacks %d rows: the disk refused them to the end.", self.path, self.lost)
            self._waiting.clear()
        if self._writer:
            self._writer.close()


def finite(value: Any) -> float | None:
    """A metric as JSON can hold it: NaN and infinity become None, numpy and torch scalars become floats."""
    number = float(value)
    return number if math.isfinite(number) else None


def cut_torn_line(path: Path) -> int:
    """Drop what follows the last newline; returns how many bytes. Reads the tail only. Does nothing when the file is
    missing, empty or whole."""
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
    """Lines with their newline from byte `start` on, one at a time; a torn last one is left out."""
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield line


def read_rows(path: Path, valid: Callable[[dict[str, Any]], bool] = lambda row: True) -> list[dict[str, Any]]:
    """All rows; [] when the file does not exist. Lines that are no JSON object, or not `valid`, are left out, said."""
    rows, garbled = _sorted_out(path, valid)
    if garbled:
        number, line = garbled[0]
        log.warning(
            "%s:%d holds %r, which is no row of this file. It is left out%s.",
            path,
            number,
            line[:80],
            f", and {n} more" if (n := len(garbled) - 1) else "",
        )
    return rows


def set_aside(path: Path, valid: Callable[[dict[str, Any]], bool]) -> tuple[list[dict[str, Any]], int]:
    """Move what is no row to FILE.garbled, so that the file is whole; returns the rows, and how many lines went."""
    rows, garbled = _sorted_out(path, valid)
    if garbled:
        aside = path.with_name(path.name + ".garbled")
        with aside.open("ab") as file:
            file.writelines(line for _, line in garbled)
        replace_rows(path, rows)
        log.warning(
            "%s: %d lines are no rows of this file, the first is line %d. They were moved to %s.",
            path,
            len(garbled),
            garbled[0][0],
            aside.name,
        )
    return rows, len(garbled)


def _sorted_out(
    path: Path, valid: Callable[[dict[str, Any]], bool]
) -> tuple[list[dict[str, Any]], list[tuple[int, bytes]]]:
    """Rows, and (line number from 1, line) of what is none. Blank lines are nothing."""
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
    """Rewrite the whole file in one atomic rename."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.replace(temporary, path)
