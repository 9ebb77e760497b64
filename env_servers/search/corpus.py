r"""A corpus: a JSONL file, one passage a line, read by number without holding the file in memory.

A line is {"contents": "title\\ntext", ...}, Search-R1's format; further fields are returned with the passage. A
malformed line is refused with file and line number. Blank lines do not count.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from openrlhf_tir.errors import DataError

FORMAT = 'Each line is a JSON object with the passage in "contents": {"id": "0", "contents": "\\"Title\\"\\nText"}.'
"""Last sentence of an error about a line."""
SURROGATE_MARKS = (b"\\u", b"\xed")
"""Bytes of which a line has one if it holds half of a surrogate pair: as an escape, or as bytes that are not UTF-8 and
that json reads all the same."""


def passages(path: Path) -> Iterator[tuple[int, int, str]]:
    """Yield offset of the line, offset behind it, and contents of every passage, in order. Raises DataError."""
    try:
        with path.open("rb") as file:
            end = 0
            for number, line in enumerate(file, 1):
                start = end
                end = end + len(line)
                if not line.isspace():
                    yield start, end, _contents(line, path, number)
    except OSError as e:
        raise reading_error(path, e) from e


def reading_error(path: Path, error: OSError) -> DataError:
    """Return the error of a corpus that cannot be read."""
    return DataError(f"Corpus {path} cannot be read: {error.strerror}. Give a JSONL file to --corpus.")


def _contents(line: bytes, path: Path, number: int) -> str:
    try:
        row = json.loads(line)
        if any(mark in line for mark in SURROGATE_MARKS):
            json.dumps(row, ensure_ascii=False).encode()  # raises for half of a surrogate pair, which cannot be sent
    except (ValueError, RecursionError) as e:
        raise DataError(f"{path}:{number}: no JSON ({e}). {FORMAT}") from None
    if not isinstance(row, dict):
        raise DataError(f"{path}:{number}: {type(row).__name__} instead of an object. {FORMAT}")
    contents = row.get("contents")
    if not isinstance(contents, str) or not contents.strip():
        fact = 'no "contents"' if contents is None else f'"contents" is {contents!r:.60}'
        raise DataError(f"{path}:{number}: {fact}, fields: {', '.join(map(str, row)) or 'none'}. {FORMAT}")
    return contents


class Corpus:
    """Passages by number. `offsets` ([N] int64) are the starts of their lines, from `passages`."""

    def __init__(self, path: Path, offsets: np.ndarray) -> None:
        self._offsets = offsets
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, number: int) -> dict[str, Any]:
        start = int(self._offsets[number])
        end = self._bytes.find(b"\n", start)
        return json.loads(self._bytes[start : end if end >= 0 else len(self._bytes)])
