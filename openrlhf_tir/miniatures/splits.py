"""Which split a problem belongs to: a hash of a text decides, so no seed moves it."""

from __future__ import annotations

import zlib
from typing import Literal

Split = Literal["train", "test"]


def split_of(text: str, held_out_of: int = 10) -> Split:
    """Return the split of a text; one text in `held_out_of` is of the test split."""
    return "test" if zlib.crc32(text.encode()) % held_out_of == 0 else "train"
