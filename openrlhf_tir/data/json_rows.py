"""Read a .jsonl or .json file as (where, row). Whatever the bytes are, a mistake names file, line, value and remedy.

The file has one object per line, or is one array of objects, in UTF-8 with or without a byte order mark. Some JSON is
refused, because it would be read as something that nobody wrote: a column that is given twice, NaN and Infinity,
integers of more than 4,300 digits, nesting beyond the parser's depth.

A fault of one row goes to `bad`, which raises it, or counts it and lets the reading continue. A fault of the file is
raised.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import DataError
from .bad_rows import Bad, refuse

MAX_ROW_BYTES = 64 << 20
"""A row is one problem. A longer line is another format, and reading it could fill the memory."""
MAX_ARRAY_BYTES = 1 << 30
"""An array is read as a whole. JSONL has no limit."""
BOM = b"\xef\xbb\xbf"
OTHERS = {
    b"PAR1": "a parquet file. Name it .parquet",
    b"\x1f\x8b": "gzip-compressed. Decompress it",
    b"PK\x03\x04": "a zip archive. Unpack it",
    b"\x28\xb5\x2f\xfd": "zstd-compressed. Decompress it",
    b"\xff\xfe": "UTF-16, not UTF-8. Convert it: iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "UTF-16, not UTF-8. Convert it: iconv -f UTF-16 -t UTF-8",
}
"""First bytes of a file -> what it is."""


def read_json(path: Path, bad: Bad = refuse) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a file. Raises DataError."""
    with path.open("rb") as file:
        head = file.read(4)
        for magic, format_name in OTHERS.items():
            if head.startswith(magic):
                raise DataError(f"{path} is {format_name}.")
        start = len(BOM) if head.startswith(BOM) else 0
        file.seek(start)
        first = file.read(1)
        while first.isspace():
            first = file.read(1)
        file.seek(start)
        yield from _array(path, file.read(MAX_ARRAY_BYTES + 1), bad) if first == b"[" else _lines(path, file, bad)


def _array(path: Path, raw: bytes, bad: Bad) -> Iterator[tuple[str, dict[str, Any]]]:
    if len(raw) > MAX_ARRAY_BYTES:
        raise DataError(
            f"{path} is one JSON array of more than {MAX_ARRAY_BYTES >> 20} MiB. Write JSONL, one object per line."
        )
    rows = parse(_text(raw, f"{path}"), f"{path}")
    if not isinstance(rows, list):
        raise DataError(f"{path} is not JSON rows: it starts with [ and is no array. Correct it.")
    for number, row in enumerate(rows, 1):
        try:
            located_row = _object(row, f"{path} item {number}")
        except DataError as error:
            bad(error)
        else:
            yield located_row


def _lines(path: Path, file: Any, bad: Bad) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    while line := file.readline(MAX_ROW_BYTES + 1):
        number += 1
        where = f"{path} line {number}"
        if len(line) > MAX_ROW_BYTES:
            raise DataError(
                f"{where} is longer than {MAX_ROW_BYTES >> 20} MiB. A row is one problem:"
                " shorten it, or convert the file to JSONL."
            )
        line = line.removeprefix(BOM)  # Files that were concatenated keep their marks.
        if not line.strip():
            continue
        try:
            located_row = _object(parse(_text(line, where), where), where)
        except DataError as error:
            if (number == 1 and line.strip() in (b"{", b"[")) or (
                path.suffix == ".json" and line.strip().startswith(b"{")
            ):
                raise DataError(
                    f"{where} is not JSON by itself: the file looks like one JSON object over several lines. Write one"
                    " row per line, or an array of rows."
                ) from None
            bad(error)
        else:
            yield located_row


def _object(row: Any, where: str) -> tuple[str, dict[str, Any]]:
    if isinstance(row, list) and len(row) == 2 and all(isinstance(turn, dict) and "from" in turn for turn in row):
        return where, {"0": row[0], "1": row[1]}  # Open-Reasoner-Zero; on the hub its columns have these names.
    if not isinstance(row, dict):
        raise DataError(
            f'{where} is {type(row).__name__}, not an object with columns. Write {{"prompt": ..., "label": ...}}.'
        )
    return where, row


def _text(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as e:
        latin = bytes([raw[e.start]]).decode("latin-1")
        raise DataError(
            f"{where} is not UTF-8: byte 0x{raw[e.start]:02x} at column {e.start + 1} (in Latin-1 it is {latin!r})."
            " Convert the file: iconv -f LATIN1 -t UTF-8."
        ) from None


def parse(text: str, where: str) -> Any:
    """Parse strict JSON. Raises DataError."""
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno} " if "\n" in text.strip() else ""
        raise DataError(
            f"{where} is not JSON: {error.msg.removesuffix(' at')} at {line}column {error.colno}. Correct or remove it."
        ) from None
    except RecursionError:
        raise DataError(f"{where} is nested too deeply to be read. Flatten it or remove it.") from None
    except _NotJson as error:
        raise DataError(f"{where} {error}") from None
    except ValueError:
        raise DataError(
            f"{where} has an integer of more than 4,300 digits. Write it as text, or remove the row."
        ) from None


class _NotJson(Exception):
    pass


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise _NotJson(f"has column {duplicate!r} twice. Keep one of them.")
    return row


def _no_constant(name: str) -> Any:
    raise _NotJson(f"holds {name}, which is not a JSON value. Write null or a number, or remove the row.")
