"""The format of a ledger's lines, and the mark at which a checkpoint cuts the file.

Every line ends with the CRC-32 of itself and of the line before it, so a line that was changed, lost or moved is found
wherever it stands. A `Mark` holds the digest of all bytes before it, so a resume compares one digest instead of parsing
the file.
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

from ...errors import CheckpointDamaged
from ...telemetry.jsonl import BLOCK, whole_lines
from ...types import TERMINAL

LEDGER = "ledger.jsonl"
"""Name of the ledger in the run directory."""
FORMAT = 2
"""Version of the format, in the first line of every ledger."""
EVENTS_WITH_KEY = TERMINAL | {"issued"}
"""Events that carry a group key in "k"."""
EVENTS_WITH_LINE = frozenset({"committed", "rolled_back"})
"""Events that carry a number of lines in "upto"."""
KEY_LIMIT = 1 << 28
"""Exclusive upper bound of an epoch, a prompt and an attempt. A larger number is a damaged line, not a data set;
without a bound it would make the audit allocate an array of that size."""
CHECKSUM_PREFIX = b', "c": "'
SEAL_BYTES = len(b', "c": "00000000"}\n')
"""Bytes at the end of a line that hold its checksum, in hexadecimal."""

# A third faster than json.loads on bytes, which first detects their encoding.
_decode = json.JSONDecoder().decode


class Line(NamedTuple):
    """One line of a ledger.

    Attributes:
        number: Line number, from 0.
        row: The event; None if the line is not an event.
        sound: True if the checksum fits the line's text and the line before it.
    """

    number: int
    row: dict[str, Any] | None
    sound: bool


def seal(body: str, previous_checksum: int) -> tuple[bytes, int]:
    """Return a line with its checksum, and the checksum, which the next line builds on.

    Args:
        body: Text of a JSON object.
        previous_checksum: Checksum of the line before; 0 for the first line.
    """
    checksum = zlib.crc32(body.encode(), previous_checksum)
    return f'{body[:-1]}, "c": "{checksum:08x}"}}\n'.encode(), checksum


def read_lines(path: Path, start: int = 0, number: int = 0, previous_checksum: int = 0) -> Iterator[Line]:
    """Yield the lines of a ledger, one at a time.

    Args:
        path: The ledger.
        start: Byte at which to begin: the start of a line.
        number: Number of that line.
        previous_checksum: Checksum of the line before it.
    """
    for line_number, line in enumerate(whole_lines(path, start), number):
        expected = zlib.crc32(line[:-SEAL_BYTES] + b"}", previous_checksum)
        previous_checksum = checksum_of(line)
        yield Line(line_number, parse(line), previous_checksum == expected)


def parse(line: bytes) -> dict[str, Any] | None:
    """Return the event in a line; None if the line is not an event."""
    try:
        row = _decode(line.decode())
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and _is_event(row) else None


def _is_event(row: dict[str, Any]) -> bool:
    """Return True if the row has the fields that readers use: an event's name, and its key or line number."""
    event = row.get("e")
    if type(event) is not str:
        return False
    if event in EVENTS_WITH_LINE:
        return type(row.get("upto")) is int and row["upto"] >= 0
    if event not in EVENTS_WITH_KEY:
        return True
    key = row.get("k")
    if type(key) is not list or len(key) != 3:
        return False
    # Written out, because this runs for every line of a file of millions. `type(...) is` refuses True and 1.0.
    epoch, prompt, attempt = key
    return (
        type(epoch) is type(prompt) is type(attempt) is int
        and 0 <= epoch < KEY_LIMIT
        and 0 <= prompt < KEY_LIMIT
        and 0 <= attempt < KEY_LIMIT
    )


def checksum_of(line: bytes) -> int:
    """Return the checksum that a line holds; 0 if it holds none that can be read."""
    if line[-SEAL_BYTES : -SEAL_BYTES + len(CHECKSUM_PREFIX)] != CHECKSUM_PREFIX:
        return 0
    try:
        return int(line[-SEAL_BYTES + len(CHECKSUM_PREFIX) : -3], 16)
    except (ValueError, RecursionError):
        return 0


@dataclass(frozen=True, slots=True)
class Mark:
    """A place between two lines of a ledger, with what a resume from there must know. JSON-ready with `asdict`.

    Attributes:
        run: Identity of the run that the ledger belongs to.
        lines: Number of lines before the mark.
        bytes: Number of bytes before the mark.
        digest: XXH3-128 of these bytes.
        check: Checksum of the line before the mark.
        attempts: (epoch, prompt, last attempt) of the prompts that had not ended.
        first_attempt: First attempt of a prompt that is not in `attempts`. Above 0 after a roll-back to the beginning,
            so that no attempt number is used twice.
    """

    run: str = ""
    lines: int = 0
    bytes: int = 0
    digest: str = ""
    check: int = 0
    attempts: tuple[tuple[int, int, int], ...] = ()
    first_attempt: int = 0

    @classmethod
    def of_json(cls, state: dict[str, Any]) -> Mark:
        """Return the mark that `asdict` and JSON turned into `state`."""
        return cls(**{**state, "attempts": tuple(map(tuple, state["attempts"]))})


BEGINNING = Mark()
"""The mark of a run that resumes without a checkpoint: no event survives."""


def compare(path: Path, mark: Mark) -> None:
    """Check that a ledger is the one that a checkpoint's mark describes, and that no byte before the mark changed.

    Raises:
        CheckpointDamaged: It is not; the message says what differs.
    """
    if not mark.lines:
        return
    if not path.is_file():
        raise CheckpointDamaged(
            f"{path} is missing. The checkpoint needs its first {mark.lines} lines.", code="file_missing"
        )
    size = path.stat().st_size
    run = run_of(path)
    if size and run != mark.run:
        raise CheckpointDamaged(
            f"{path} is the ledger of another run ({run or 'its first line cannot be read'};"
            f" the checkpoint belongs to {mark.run}).",
            code="resume",
        )
    if size < mark.bytes:
        raise CheckpointDamaged(
            f"{path} has {size} bytes; the checkpoint needs its first {mark.bytes} ({mark.lines} lines)."
            " The rest is lost.",
            code="file_size",
        )
    hashing = xxhash.xxh3_128()
    hash_file(path, hashing, mark.bytes)
    if hashing.hexdigest() != mark.digest:
        raise CheckpointDamaged(
            f"{path} was changed since the checkpoint: {_first_difference(path, mark)}.", code="file_changed"
        )


def run_of(path: Path) -> str | None:
    """Return the identity of the run that a ledger belongs to; None if its first line does not tell it."""
    first = next(read_lines(path), None)
    if first is None or first.row is None or first.row["e"] != "ledger":
        return None
    return first.row.get("run")


def _first_difference(path: Path, mark: Mark) -> str:
    broken = next((line for line in read_lines(path) if line.number < mark.lines and not line.sound), None)
    if broken is None:
        return f"its first {mark.lines} lines are not those that were written"
    return f"line {broken.number + 1}, or one before it, is not what was written"


def hash_file(path: Path, hashing: Any, num_bytes: int) -> int:
    """Update `hashing` with the first `num_bytes` bytes of a file. Return the number of lines among them."""
    lines = 0
    with path.open("rb") as file:
        while num_bytes > 0 and (block := file.read(min(BLOCK, num_bytes))):
            hashing.update(block)
            lines += block.count(b"\n")
            num_bytes -= len(block)
    return lines


def last_line(path: Path) -> bytes:
    """Return the last line of a file whose last line is complete."""
    with path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        tail = b""
        while position > 0 and tail.count(b"\n", 0, -1) == 0:
            step = min(BLOCK, position)
            position -= step
            file.seek(position)
            tail = file.read(step) + tail
    return tail[tail.rfind(b"\n", 0, -1) + 1 :]
