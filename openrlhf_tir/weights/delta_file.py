"""Delta file: everything that changed between two pushes, in one file, chained to the weights that it continues.

    MAGIC | pieces (delta.py), one after the other | index, JSON | length of the index, 8 bytes | MAGIC
    link = XXH3-128(digest of the weights before, all bytes of the file)

The index names both digests: of the weights before and of those after. A node applies a file only to weights that it
has proved to be the ones before, only when the link is the announced one, and uses the result only when its digest is
the announced one. So a delta that is damaged, left out, taken twice or out of order is refused by name.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash

from ..errors import DeltaRefused
from ..types import Changes
from .delta import Piece, integers
from .digest import CHUNK_BYTES, ITEM_BYTES

MAGIC = b"TIRDELTA"
_END = struct.Struct("<Q8s")


class DeltaWriter:
    """Piece by piece into `out`; memory holds the index only."""

    def __init__(self, out: BinaryIO, base: str, base_version: int) -> None:
        self.out, self.base, self.base_version = out, base, base_version
        self.size = 0
        self._link = xxhash.xxh3_128(base.encode())
        self._index: list[list[Any]] = []
        self._write(MAGIC)

    def add(self, name: str, begin: int, piece: Piece) -> None:
        """`begin`: the byte of tensor `name` that the piece begins at."""
        self._index.append([name, begin, self.size, len(piece.gaps), len(piece.wides)])
        for part in piece:
            self._write(part.view(np.uint8))

    def end(self, digest: str) -> Changes:
        """`digest`: of the weights after it."""
        index = json.dumps(
            {"base": self.base, "base_version": self.base_version, "digest": digest, "pieces": self._index},
            separators=(",", ":"),
        ).encode()
        self._write(index)
        self._write(_END.pack(len(index), MAGIC))
        return Changes(digest, self._link.hexdigest())

    def _write(self, data: Any) -> None:
        self.out.write(data)
        self._link.update(data)
        self.size += len(data)


class Delta:
    """A delta file that was read."""

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
            self._pieces: dict[tuple[str, int], list[list[int]]] = {}
            for name, begin, at, entries, wides in index["pieces"]:
                cut = begin // CHUNK_BYTES * CHUNK_BYTES
                self._pieces.setdefault((name, cut), []).append([begin - cut, at, entries, wides])
        except (OSError, ValueError, KeyError, TypeError, struct.error) as e:
            raise DeltaRefused(f"{path} is no complete delta: {e}.") from e

    @property
    def link(self) -> str:
        link = xxhash.xxh3_128(self.base.encode())
        link.update(self.file.data)
        return link.hexdigest()

    @property
    def tensors(self) -> set[str]:
        return {name for name, _ in self._pieces}

    def pieces(self, name: str, part: slice, dtype: str) -> list[tuple[int, Piece]]:
        """What changes in chunk `part` of a tensor: (byte within the chunk, piece), ascending."""
        found = []
        for begin, at, entries, wides in sorted(self._pieces.get((name, part.start), [])):
            narrow, wide = at + entries, at + 2 * entries
            gaps, differences = self.file[at:narrow], self.file[narrow:wide].view(np.int8)
            # a copy: it may begin anywhere
            values = self.file[wide : wide + wides * ITEM_BYTES[dtype]].tobytes()
            found.append((begin, Piece(gaps, differences, np.frombuffer(values, integers(dtype)))))
        return found
