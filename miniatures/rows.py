"""What rows of all miniatures have: a split, and files of JSON lines."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from openrlhf_tir.machine.files import replace_text

Split = Literal["train", "test"]


def split_of(text: str, held_out_of: int = 10) -> Split:
    """Return the split of a problem, by a hash of its text, so that no seed moves it.

    Args:
        text: What tells the problem from others.
        held_out_of: One problem in so many is of the test split.
    """
    return "test" if zlib.crc32(text.encode()) % held_out_of == 0 else "train"


def write_jsonl(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Write rows as JSON lines; make the directory if it does not exist.

    The file is there as a whole or not at all: who is killed meanwhile leaves no part of it for a later start to use.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, "".join(json.dumps(row) + "\n" for row in rows))
