"""Delta: the bits of two versions of a tensor -> what changed, exactly; and back.

At a learning rate of 1e-6 a step is smaller than the last of bf16's 8 bits: 95 of 100 weights keep their bits, and most
of the others move to a neighbour.

    entry  = (gap, difference)   gap: elements since the entry before, 1 to 255     difference: of the bits, as
           integers, -127 to 127
    piece  = gaps [n] uint8, differences [n] int8, wides [m] integers of the tensor's own size

A larger gap has entries of difference 0 in between; a larger difference is -128 here, and its value the next of
`wides`. So a changed weight of bf16 takes two bytes. Which weights changed, and to what, is all there is: nothing is
rounded. Memory is gone through once: delta_loops.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from .digest import ITEM_BYTES

PIECE_BYTES = 2**20
"""What is compared at a time: two of them and what comes of it stay in a core's cache. Divides CHUNK_BYTES."""


class Piece(NamedTuple):
    gaps: np.ndarray
    differences: np.ndarray
    wides: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.gaps.nbytes + self.differences.nbytes + self.wides.nbytes


class _Room(threading.local):
    """What a thread's next piece is written to. Fresh memory for each would cost a tenth of a push."""

    def __init__(self) -> None:
        self.have: list[np.ndarray] = []

    def arrays(self, n: int, integer: np.dtype) -> list[np.ndarray]:
        """For n gaps, n differences and n wides."""
        if not self.have or len(self.have[0]) < n or self.have[2].dtype != integer:
            self.have = [np.empty(n, np.uint8), np.empty(n, np.int8), np.empty(n, integer)]
        return self.have


_room = _Room()


def integers(dtype: str) -> np.dtype:
    """What the bits of a safetensors dtype are counted as: signed integers of its size."""
    return np.dtype(f"<i{ITEM_BYTES[dtype]}")


def encode(old: np.ndarray, new: np.ndarray) -> Piece | None:
    """What makes `new` of `old`, both [n] signed integers of one size; None when nothing does."""
    return take_over(old.copy(), new)


def take_over(old: np.ndarray, new: np.ndarray) -> Piece | None:
    """`encode`; and `old` then is `new`, by writing what changed only: the memory that stays as it is need not be
    written back."""
    from . import delta_loops

    assert len(old) == len(new)
    gaps, differences, wides = _room.arrays(len(new), new.dtype)
    entries, wide = delta_loops.take_over(old, new, gaps, differences, wides)
    return Piece(gaps[:entries].copy(), differences[:entries].copy(), wides[:wide].copy()) if entries else None


def inverse(piece: Piece) -> Piece:
    """What makes the old of the new. -128, which stands for a large difference, is its own negative in 8 bits."""
    return Piece(piece.gaps, -piece.differences, -piece.wides)


def prepare(compile_loop: Callable[[np.dtype], None], dtypes: Iterable[str]) -> None:
    """The loop is compiled for them beside whatever comes next: a process's first delta would wait a second for it."""
    begun = _begun.setdefault(compile_loop, set())
    for integer in {integers(dtype) for dtype in dtypes} - begun:
        begun.add(integer)
        threading.Thread(target=compile_loop, args=(integer,), name=COMPILING).start()


COMPILING = "compile a delta's loop"
_begun: dict[Callable[[np.dtype], None], set[np.dtype]] = {}


def compile_take_over(integer: np.dtype) -> None:
    take_over(np.zeros(1, integer), np.ones(1, integer))


def compile_apply(integer: np.dtype) -> None:
    """For pieces as a delta file has them, which cannot be written to: another type."""
    piece = (np.ones(1, np.uint8), np.ones(1, np.int8), np.empty(0, integer))
    for part in piece:
        part.flags.writeable = False
    apply(Piece(*piece), np.zeros(1, integer))


def apply(piece: Piece, data: np.ndarray) -> None:
    """`data`, [n] integers: the old becomes the new, in place. Raises ValueError for a piece that is not of such a
    tensor; then nothing was changed."""
    from . import delta_loops

    gaps, differences, wides = piece
    if len(gaps) != len(differences):
        raise ValueError(f"a piece of {len(gaps)} gaps and {len(differences)} differences")
    elements, wide = delta_loops.extent(gaps, differences)
    if not 0 < elements <= len(data) or wide != len(wides):
        raise ValueError(
            f"a piece over {elements} elements of {len(data)}, with {len(wides)} of {wide} large differences"
        )
    delta_loops.apply(gaps, differences, wides, data)
