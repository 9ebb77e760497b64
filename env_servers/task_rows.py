"""Write the rows that a `make_tasks` has made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]], note: str = "") -> None:
    """Write rows as JSON lines, and print how many they are, with a note.

    Raises:
        TypeError: A row is no JSON. The file is then as it was.
        UnicodeEncodeError: A row has half of a surrogate pair. The file is then as it was.
    """
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_bytes("".join(lines).encode())
    print(f"{path}: {len(lines)} rows{note}")
