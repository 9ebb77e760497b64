"""Lines of a ledger: an event -> a line with a checksum -> events; and a place in the file, which a checkpoint stands
on.

Every line ends with the CRC-32 of itself and of the line before, so that a line that is changed, lost or moved is found
wherever it stands; a `Mark` has the digest of all bytes before it, so that a resume compares instead of parsing.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from ..errors import CheckpointDamaged
from ..logs.jsonl import BLOCK, whole_lines
from ..types import TERMINAL

FORMAT = 2
KEYED, PLACED = TERMINAL | {"issued"}, frozenset({"committed", "rolled_back"})
"""Events that have a key, and those that have a line, `upto`."""
LARGEST = 1 << 28
"""The bound of a key's numbers, exclusive: what is beyond is a damaged line, not a data set."""
_decode = json.JSONDecoder().decode
SEAL = len(b', "c": "00000000"}\n')
"""Bytes at the end of a line: its checksum, hexadecimal."""


class Line(NamedTuple):
    """`row` is None for a line that is no row; `sound`: its checksum is that of its text after the line before."""

    number: int
    row: dict[str, Any] | None
    sound: bool


def seal(body: str, before: int) -> tuple[bytes, int]:
    """A JSON object's text -> the line with its checksum, and the checksum, with which the next line begins."""
    check = zlib.crc32(body.encode(), before)
    return f'{body[:-1]}, "c": "{check:08x}"}}\n'.encode(), check


def read_lines(path: Path, start: int = 0, number: int = 0, before: int = 0) -> Iterator[Line]:
    """From byte `start`, which is line `number`, on; `before` is the checksum of the line before."""
    for n, line in enumerate(whole_lines(path, start), number):
        expected = zlib.crc32(line[:-SEAL] + b"}", before)
        before = checksum_of(line)
        yield Line(n, parse(line), before == expected)


def parse(line: bytes) -> dict[str, Any] | None:
    """The event; None for what is none."""
    try:
        row = _decode(line.decode())  # a third faster than json.loads of bytes, which looks for their encoding
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and _is_event(row) else None


def _is_event(row: dict[str, Any]) -> bool:
    """Has what the readers look at: an event, and the key or the line that it is about."""
    event = row.get("e")
    if type(event) is not str:
        return False
    if event not in KEYED:
        return event not in PLACED or (type(row.get("upto")) is int and row["upto"] >= 0)
    key = row.get("k")
    if type(key) is not list or len(key) != 3:
        return False
    a, b, c = key
    return type(a) is type(b) is type(c) is int and 0 <= a < LARGEST and 0 <= b < LARGEST and 0 <= c < LARGEST


def checksum_of(line: bytes) -> int:
    """0 where there is none that can be read: a line before the first, or a garbled one."""
    if line[-SEAL : -SEAL + 8] != b', "c": "':
        return 0
    try:
        return int(line[-SEAL + 8 : -3], 16)
    except (ValueError, RecursionError):
        return 0


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a ledger, between two lines, and what a resume from there must know. JSON-ready by `asdict`."""

    run: str = ""
    lines: int = 0
    bytes: int = 0
    digest: str = ""
    """XXH3-128 of all bytes before."""
    check: int = 0
    """Checksum of the line before."""
    attempts: tuple[tuple[int, int, int], ...] = ()
    """(epoch, prompt, last attempt) of the prompts that had not ended."""
    first_attempt: int = 0
    """The first attempt of a prompt that was never issued, or only before a roll-back to the beginning."""

    @classmethod
    def of_json(cls, state: dict[str, Any]) -> Mark:
        return cls(**{**state, "attempts": tuple(map(tuple, state["attempts"]))})


BEGINNING = Mark()
"""The mark of a run that resumes without a checkpoint: nothing that happened survives."""


def compare(path: Path, mark: Mark) -> None:
    """The ledger is that of the checkpoint with this mark, and nothing before the mark was changed. Raises
    CheckpointDamaged with what differs."""
    if not mark.lines:
        return
    if not path.is_file():
        raise CheckpointDamaged(f"{path} is missing. The checkpoint stands on its first {mark.lines} lines.")
    size = path.stat().st_size
    if (run := run_of(path)) != mark.run and size:
        raise CheckpointDamaged(
            f"{path} is the ledger of another run ({run or 'its first line cannot be read'};"
            f" the checkpoint is of {mark.run})."
        )
    if size < mark.bytes:
        raise CheckpointDamaged(
            f"{path} has {size} bytes; the checkpoint stands on its first {mark.bytes}, which are {mark.lines} lines."
            " The rest is lost."
        )
    hashing = xxhash.xxh3_128()
    hash_file(path, hashing, mark.bytes)
    if hashing.hexdigest() != mark.digest:
        raise CheckpointDamaged(f"{path} was changed since the checkpoint: {_first_difference(path, mark)}.")


def run_of(path: Path) -> str | None:
    """Which run the ledger is of; None when its first line does not say."""
    first = next(read_lines(path), None)
    return first.row.get("run") if first and first.row and first.row["e"] == "ledger" else None


def _first_difference(path: Path, mark: Mark) -> str:
    broken = next((line for line in read_lines(path) if line.number < mark.lines and not line.sound), None)
    return (
        f"line {broken.number + 1}, or one before it, is not what was written"
        if broken
        else f"its first {mark.lines} lines are not those that were written"
    )


def hash_file(path: Path, hashing: Any, upto: int) -> int:
    """Feeds the first `upto` bytes; returns how many lines they are."""
    lines = 0
    with path.open("rb") as file:
        while upto > 0 and (block := file.read(min(BLOCK, upto))):
            hashing.update(block)
            lines += block.count(b"\n")
            upto -= len(block)
    return lines


def last_line(path: Path) -> bytes:
    """The last line of a file in which no line is torn."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        tail = b""
        while size > 0 and tail.count(b"\n", 0, -1) == 0:
            step = min(BLOCK, size)
            size -= step
            file.seek(size)
            tail = file.read(step) + tail
    return tail[tail.rfind(b"\n", 0, -1) + 1 :]
