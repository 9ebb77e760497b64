"""Rows -> JSONL, a JSON array or parquet, by the name's suffix. What cannot be finished leaves nothing behind."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...config.paths import shorten
from ...errors import ConfigError, DataError
from ..rows import SUFFIXES

Row = dict[str, Any]


def check_target(path: Path, sources: Iterable[str]) -> None:
    """Raises ConfigError for a suffix that is not written, and for one of the sources."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(
            f"--out {path} ends in {path.suffix!r}. Known: {', '.join(SUFFIXES)}. Name it"
            f" {path.with_suffix('.jsonl').name}, for one object per line."
        )
    for source in sources:
        if Path(source).exists() and path.exists() and path.samefile(source):
            raise ConfigError(f"--out {path} is one of the files that are read. Give it another name.")


def write_rows(path: Path, rows: Iterable[Any]) -> int:
    """How many were written. JSONL is written as the rows come; the other forms are held in memory. Raises DataError
    for what parquet cannot hold."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        count = _write(temporary, path.suffix, rows)
        temporary.replace(path)
    except OSError as e:
        raise ConfigError(f"{path} cannot be written: {e.strerror or e}. Choose another place with --out.") from None
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _write(path: Path, suffix: str, rows: Iterable[Any]) -> int:
    if suffix == ".jsonl":
        count = 0
        with path.open("w", encoding="utf-8") as file:
            for row in rows:
                count += 1
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        return count
    held = list(rows)
    if suffix == ".json":
        path.write_text(
            "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in held) + "\n]\n", encoding="utf-8"
        )
    else:
        _write_parquet(path, held)
    return len(held)


def _write_parquet(path: Path, rows: list[Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        pq.write_table(pa.Table.from_pylist(rows), path)
    except (pa.ArrowException, TypeError, AttributeError) as e:
        said = shorten(str(e).splitlines()[0] if str(e) else type(e).__name__)
        raise DataError(
            f"The rows do not fit into one parquet table: {said}. A column has one type there: write .jsonl instead."
        ) from None
