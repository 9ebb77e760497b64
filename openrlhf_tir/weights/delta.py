"""Encode exactly which elements changed between two versions of a tensor, and apply that to the old version.

At a learning rate of 1e-6 a step is smaller than the last of bf16's 8 bits: 95 of 100 weights keep their bits, and most
of the others move to a neighbouring value.

    entry  = (gap, difference)   gap: elements since the last entry, 1 to 255
                                 difference: of the bits, taken as integers, -127 to 127
    piece  = gaps [n] uint8, differences [n] int8, wides [m] integers of the tensor's own size

A larger gap is bridged by entries with difference 0. A larger difference is stored as -128, and its value is the next
one of `wides`. So a changed bf16 weight takes two bytes. Nothing is rounded. The loops in delta_loops.py read memory
once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from .digest import ITEM_BYTES

PIECE_BYTES = 2**20
"""Bytes that are compared at once. Two of them and the resulting piece fit into a core's cache. Divides CHUNK_BYTES."""


class Piece(NamedTuple):
    """The changes of up to PIECE_BYTES bytes of a tensor; see the module's docstring."""

    gaps: np.ndarray
    differences: np.ndarray
    wides: np.ndarray

    @property
    def nbytes(self) -> int:
        """Size of the encoded piece in bytes."""
        return self.gaps.nbytes + self.differences.nbytes + self.wides.nbytes


class _Scratch(threading.local):
    """Per-thread working memory for a piece. Allocating it for each piece would take a tenth of a push."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []

    def arrays(self, n: int, integer: np.dtype) -> list[np.ndarray]:
        """Return arrays for n gaps, n differences and n wides of type `integer`."""
        if not self._arrays or len(self._arrays[0]) < n or self._arrays[2].dtype != integer:
            self._arrays = [np.empty(n, np.uint8), np.empty(n, np.int8), np.empty(n, integer)]
        return self._arrays


_scratch = _Scratch()


def integers(dtype: str) -> np.dtype:
    """Return the numpy type that the bits of a safetensors dtype are read as: signed integers of its size."""
    return np.dtype(f"<i{ITEM_BYTES[dtype]}")


def take_over(old: np.ndarray, new: np.ndarray) -> Piece | None:
    """Turn `old` into `new` in place and return the piece that does that; None if they are equal.

    Both are [n] signed integers of one size. Only changed elements are written, so that unchanged memory does not have
    to be written back from the cache.
    """
    from . import delta_loops

    assert len(old) == len(new)
    gaps, differences, wides = _scratch.arrays(len(new), new.dtype)
    entries, wide = delta_loops.take_over(old, new, gaps, differences, wides)
    if not entries:
        return None
    return Piece(gaps[:entries].copy(), differences[:entries].copy(), wides[:wide].copy())


def inverse(piece: Piece) -> Piece:
    """Return the piece that turns the new version back into the old one.

    -128, which marks a wide difference, stays -128 because it is its own negative in 8 bits.
    """
    return Piece(piece.gaps, -piece.differences, -piece.wides)


def prepare(compile_loop: Callable[[np.dtype], None], dtypes: Iterable[str]) -> None:
    """Compile a loop in background threads, so that the first delta of the process does not wait a second for it.

    Args:
        compile_loop: `compile_take_over` or `compile_apply`.
        dtypes: safetensors names of the dtypes to compile it for. Those that were prepared before are skipped.
    """
    started = _started.setdefault(compile_loop, set())
    for integer in {integers(dtype) for dtype in dtypes} - started:
        started.add(integer)
        threading.Thread(target=compile_loop, args=(integer,), name=COMPILING).start()


COMPILING = "compile a delta's loop"
"""Name of the threads of `prepare`."""
_started: dict[Callable[[np.dtype], None], set[np.dtype]] = {}


def compile_take_over(integer: np.dtype) -> None:
    """Compile the loop of `take_over` for one type of integers."""
    take_over(np.zeros(1, integer), np.ones(1, integer))


def compile_apply(integer: np.dtype) -> None:
    """Compile the loops of `apply` for one type of integers.

    The arrays of pieces from a delta file are read-only, which is another type for numba.
    """
    piece = (np.ones(1, np.uint8), np.ones(1, np.int8), np.empty(0, integer))
    for part in piece:
        part.flags.writeable = False
    apply(Piece(*piece), np.zeros(1, integer))


def apply(piece: Piece, data: np.ndarray) -> None:
    """Turn the old version into the new one, in place.

    Args:
        piece: What changed.
        data: The old version, [n] integers.

    Raises:
        ValueError: The piece does not belong to such a tensor. Nothing was changed.
    """
    from . import delta_loops

    gaps, differences, wides = piece
    if len(gaps) != len(differences):
        raise ValueError(f"a piece has {len(gaps)} gaps and {len(differences)} differences")
    elements, wide = delta_loops.extent(gaps, differences)
    if not 0 < elements <= len(data) or wide != len(wides):
        raise ValueError(
            f"a piece covers {elements} elements of {len(data)}, and has {len(wides)} wide differences for {wide}"
        )
    delta_loops.apply(gaps, differences, wides, data)
