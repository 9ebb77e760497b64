"""Delta file: everything that changed between two pushes, in one file, chained to the weights that it continues.

    MAGIC | parts, one after the other | index, JSON | length of the index, 8 bytes | MAGIC
    part = pieces (delta.py) of one tensor
    link = XXH3-128(digest of the weights before, index)

Parts are written, read and hashed by several threads at once. The index has the hash of each, so that the link covers
every byte, and both digests: of the weights before and of those after. A node applies a file only to weights that it
has proved to be the ones before, only when the link is the announced one, and uses the result only when its digest is
the announced one. So a delta that is damaged, left out, taken twice or out of order is refused by name.
"""

from __future__ import annotations

import json
import os
import struct
import threading
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash

from ..errors import DeltaRefused
from ..types import DeltaDigest
from .delta import Piece, integers
from .digest import CHUNK_BYTES, ITEM_BYTES, chunk_hash

MAGIC = b"TIRDELTA"
_END = struct.Struct("<Q8s")


class DeltaWriter:
    """Part by part into `out`; memory holds the index only."""

    def __init__(self, out: BinaryIO, base: str, base_version: int) -> None:
        self.out, self.base, self.base_version = out, base, base_version
        self.size = 0
        self._turn = threading.Lock()
        self._parts: list[list[Any]] = []
        self._write(MAGIC)

    def add(self, name: str, pieces: list[tuple[int, Piece]]) -> None:
        """A part: (byte of tensor `name` that the piece begins at, piece). From any thread. Raises OSError."""
        data = b"".join(array.view(np.uint8).data for _, piece in pieces for array in piece)
        hashed = chunk_hash(data).hex()
        with self._turn:
            at, index = self.size, []
            for begin, piece in pieces:
                index.append([begin, at, len(piece.gaps), len(piece.wides)])
                at += piece.nbytes
            self._parts.append([name, len(data), hashed, index])
            self._write(data)

    def end(self, digest: str) -> DeltaDigest:
        """`digest`: of the weights after it."""
        index = json.dumps(
            {"base": self.base, "base_version": self.base_version, "digest": digest, "parts": self._parts},
            separators=(",", ":"),
        ).encode()
        self._write(index)
        self._write(_END.pack(len(index), MAGIC))
        return DeltaDigest(digest, _link(self.base, index))

    def _write(self, data: bytes) -> None:
        self.out.write(data)
        self.size += len(data)


def _link(base: str, index: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(base.encode() + index)


class Damaged(ValueError):
    """A part of a delta is not the one that was announced."""


class Delta:
    """A delta file whose index was read; its parts are when they are asked for."""

    def __init__(self, path: Path) -> None:
        """Raises DeltaRefused for what is none, or not whole."""
        self.path = path
        try:
            with open(path, "rb") as f:
                fd, end = f.fileno(), os.fstat(f.fileno()).st_size - _END.size
                length, magic = _END.unpack(os.pread(fd, _END.size, max(0, end)))
                if magic != MAGIC or os.pread(fd, len(MAGIC), 0) != MAGIC:
                    raise ValueError("it does not begin or end as one")
                if length > end:
                    raise ValueError(f"an index of {length} bytes does not fit into it")
                text = os.pread(fd, length, end - length)
                # read at the disk's speed, and not fault by fault, while the index is: so the index is read before
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)
                # as a plain array: a memmap does its bookkeeping for every slice
                self.file = np.asarray(np.memmap(f, np.uint8, mode="r"))
            index = json.loads(text)
            self.base, self.base_version = str(index["base"]), int(index["base_version"])
            self.digest = str(index["digest"])
            self.link = _link(self.base, text)
            """To be compared with the announced one before a part is asked for."""
            self._chunks: dict[tuple[str, int], list[tuple[int, int, int, int, int]]] = {}
            self._parts: list[tuple[slice, str]] = []
            last = len(MAGIC)
            for name, size, hashed, pieces in index["parts"]:
                for begin, at, entries, wides in pieces:
                    cut = begin // CHUNK_BYTES * CHUNK_BYTES
                    piece = begin - cut, len(self._parts), at, entries, wides
                    self._chunks.setdefault((name, cut), []).append(piece)
                self._parts.append((slice(last, last := last + size), hashed))
            if last != end - length:
                raise ValueError(f"its parts end at byte {last}, its index begins at {end - length}")
        except (OSError, ValueError, KeyError, TypeError, struct.error) as e:
            raise DeltaRefused(f"{path} is no complete delta: {e}.") from e

    @property
    def tensors(self) -> set[str]:
        return {name for name, _ in self._chunks}

    def pieces(self, name: str, part: slice, dtype: str) -> list[tuple[int, Piece]]:
        """What changes in chunk `part` of a tensor: (byte within the chunk, piece), ascending. Raises Damaged; from any
        thread."""
        found, chunk = [], sorted(self._chunks.get((name, part.start), []))
        for i in {part_of for _, part_of, *_ in chunk}:
            where, announced = self._parts[i]
            if chunk_hash(self.file[where]).hex() != announced:
                raise Damaged(f"bytes {where.start} to {where.stop} of the file are not those that were written")
        for begin, _, at, entries, wides in chunk:
            narrow, wide = at + entries, at + 2 * entries
            gaps, differences = self.file[at:narrow], self.file[narrow:wide].view(np.int8)
            # a copy: it may begin anywhere
            values = self.file[wide : wide + wides * ITEM_BYTES[dtype]].tobytes()
            found.append((begin, Piece(gaps, differences, np.frombuffer(values, integers(dtype)))))
        return found
