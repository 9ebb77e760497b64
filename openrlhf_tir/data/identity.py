"""Identity of a row: input and label -> a short name, the same in whatever file, format or order the row is found."""

from __future__ import annotations

import json
from typing import Any

import xxhash


def row_id(given: Any, label: str) -> str:
    """16 hexadecimal digits (XXH3-64) of the input, text or chat messages, and the label. Two rows with both the same
    are the same problem."""
    return xxhash.xxh3_64_hexdigest(json.dumps([given, label], ensure_ascii=False, sort_keys=True).encode())
