"""Delta: the bits of two versions of a tensor -> what changed, exactly; and back. numpy only.

At a learning rate of 1e-6 a step is smaller than the last of bf16's 8 bits: 95 of 100 weights keep their bits, and most of the others move to a neighbour.

    entry  = (gap, difference)   gap: elements since the entry before, 1 to 255     difference: of the bits, as integers, -127 to 127
    piece  = gaps [n] uint8, differences [n] int8, wides [m] integers of the tensor's own size

A larger gap has entries of difference 0 in between; a larger difference is -128 here, and its value the next of `wides`. So a changed weight of bf16
takes two bytes. Which weights changed, and to what, is all there is: nothing is rounded.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .digest import ITEM_BYTES

PIECE_BYTES = 2**20
"""What is compared at a time: two of them and what comes of it stay in a core's cache. Divides CHUNK_BYTES."""
MAX_GAP = 255
WIDE = -128
"""In place of a difference that int8 does not hold."""


class Piece(NamedTuple):
    gaps: np.ndarray
    differences: np.ndarray
    wides: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.gaps.nbytes + self.differences.nbytes + self.wides.nbytes


def integers(dtype: str) -> np.dtype:
    """What the bits of a safetensors dtype are counted as: signed integers of its size."""
    return np.dtype(f"<i{ITEM_BYTES[dtype]}")


def encode(old: np.ndarray, new: np.ndarray) -> Piece | None:
    """What makes `new` of `old`, both [n] signed integers of one size; None when nothing does."""
    at = _changed(old, new)
    if not len(at):
        return None
    differences, gaps = new[at] - old[at], np.diff(at, prepend=-1)  # the difference wraps around, and so does the sum
    wide = (differences > 127) | (differences <= WIDE)
    narrow = differences.astype(np.int8)
    narrow[wide] = WIDE
    between = (gaps - 1) // MAX_GAP
    if between.any():
        before = np.repeat(np.arange(len(gaps)), between)
        gaps, narrow = np.insert(gaps - MAX_GAP * between, before, MAX_GAP), np.insert(narrow, before, 0)
    return Piece(gaps.astype(np.uint8), narrow, differences[wide])


def _changed(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Where they differ, ascending. Eight bytes are compared at once, then the elements of those that differ: three times as fast."""
    per_word = 8 // old.itemsize
    if per_word == 1 or len(old) % per_word:
        return np.flatnonzero(old != new)
    words = np.flatnonzero(old.view(np.int64) != new.view(np.int64))
    if len(words) > len(old) // per_word // 2:
        return np.flatnonzero(old != new)
    within = np.flatnonzero(old.reshape(-1, per_word)[words].ravel() != new.reshape(-1, per_word)[words].ravel())
    return words[within // per_word] * per_word + within % per_word


def apply(piece: Piece, data: np.ndarray) -> None:
    """`data`, [n] integers: the old becomes the new, in place. Raises ValueError for a piece that is not of such a tensor; then nothing was changed."""
    gaps, narrow, wides = piece
    if len(gaps) != len(narrow) or not len(gaps) or not gaps.all():
        raise ValueError(f"a piece of {len(gaps)} gaps and {len(narrow)} differences")
    at = np.cumsum(gaps, dtype=np.int64) - 1
    wide = narrow == WIDE
    if at[-1] >= len(data) or wide.sum() != len(wides):
        raise ValueError(f"a piece that ends at element {at[-1]} of {len(data)}, with {wide.sum()} of {len(wides)} large differences")
    differences = narrow.astype(data.dtype)
    differences[wide] = wides
    data[at] += differences
