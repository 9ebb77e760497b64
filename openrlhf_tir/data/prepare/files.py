"""Write rows as JSONL, a JSON array or parquet, by the suffix of the file. An unfinished file leaves nothing behind.

Parquet has one set of columns: those of all rows, or the files' own if rows of parquet files are written unchanged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ...config.paths import ROW_FILES, check_new_file, query_path, shorten
from ...errors import ConfigError, DataError
from .. import checks

Row = dict[str, Any]


def check_target(path: Path, read: Iterable[Path], flag: str = "--out", suffixes: Sequence[str] = ROW_FILES) -> None:
    """Check the file that a command will write at its end.

    Args:
        path: The file.
        read: The files that the command reads.
        flag: The flag that names the file, for messages.
        suffixes: The suffixes that can be written; empty if the suffix says nothing.

    Raises:
        ConfigError: It cannot be written, has another suffix, or is one of the files that are read.
    """
    check_new_file(path, flag)
    if suffixes and path.suffix not in suffixes:
        raise ConfigError(
            f"{flag} {path} ends in {path.suffix!r}. Known: {', '.join(suffixes)}. Name it"
            f" {path.with_suffix('.jsonl').name}, for one object per line."
        )
    if query_path(path, Path.exists, flag) and any(
        query_path(file, Path.exists, flag) and path.samefile(file) for file in read
    ):
        raise ConfigError(f"{flag} {path} is one of the files that are read. Give it another name.")


def check_apart(out: Path, other: Path, flag: str) -> None:
    """Raise ConfigError if a command would write its two files, of --out and of `flag`, over one another."""
    if out.resolve() == other.resolve():
        raise ConfigError(f"--out and {flag} are both {out}: one would be written over the other. Give two names.")


def columns_of(sources: Sequence[str]) -> Any:
    """Return the schema that all of the parquet files have; None otherwise: the columns are then those of the rows."""
    if not sources or not all(Path(source).suffix == ".parquet" and Path(source).is_file() for source in sources):
        return None
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schemas = [pq.read_schema(source).remove_metadata() for source in sources]
    except (pa.ArrowException, OSError):
        return None  # Reading the rows reports what is wrong with the file.
    return schemas[0] if all(schema.equals(schemas[0]) for schema in schemas) else None


def write_rows(path: Path, rows: Iterable[Any], columns: Any = None) -> int:
    """Write the rows and return their number. JSONL is written row by row; the other formats are held in memory.

    Args:
        path: The file.
        rows: The rows.
        columns: See `columns_of`.

    Raises:
        DataError: A row does not fit the format.
        ConfigError: The file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        count = _write(temporary, path.suffix, rows, columns)
        temporary.replace(path)
    except OSError as e:
        raise ConfigError(f"{path} cannot be written: {e.strerror or e}. Choose another place with --out.") from None
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _write(path: Path, suffix: str, rows: Iterable[Any], columns: Any) -> int:
    if suffix == ".jsonl":
        count = 0
        with path.open("w", encoding="utf-8") as file:
            for count, row in enumerate(rows, 1):
                file.write(_json(row, count) + "\n")
        return count
    held = list(rows)
    if suffix == ".json":
        lines = [_json(row, i) for i, row in enumerate(held, 1)]
        path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
    else:
        _write_parquet(path, held, columns)
    return len(held)


def _json(row: Any, number: int) -> str:
    """Return a row as JSON. Raises DataError for NaN, dates and bytes, which parquet holds and JSON does not."""
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError):
        where, said = f"row {number} of those that are written", "is no JSON."
        try:
            checks.json_value(row, where, "it")
        except DataError as error:
            where, said = str(error), ""
        raise DataError(f"{where} {said} Or write .parquet, which holds what a parquet file held.") from None
    try:
        text.encode()
    except UnicodeEncodeError:  # A lone surrogate was read from an escape of JSON, and is written as one.
        return json.dumps(row)
    return text


def _write_parquet(path: Path, rows: list[Row], columns: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = list(dict.fromkeys(name for row in rows for name in row))  # pyarrow would take those of the first row
        table = (
            pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
            if columns is None
            else pa.Table.from_pylist(rows, schema=columns)
        )
        pq.write_table(table, path)
    except (pa.ArrowException, TypeError, AttributeError, ValueError, OverflowError) as error:
        said = shorten(str(error).splitlines()[0] if str(error) else type(error).__name__).rstrip(".")
        raise DataError(
            f"The rows do not fit into one parquet table: {said}. A column has one type there: write .jsonl instead."
        ) from None
