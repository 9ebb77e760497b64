"""Write and read delta files: everything that changed between two pushes, chained to the weights before.

    MAGIC | parts, one after the other | index as JSON | length of the index, 8 bytes | MAGIC
    part = pieces (delta.py) of one tensor
    link = XXH3-128(digest of the weights before, index)

Several threads write, read and hash parts at once. The index contains the hash of each part, so that the link covers
every byte, and the digests of the weights before and after. A node applies a file only to weights that it has proved to
be the ones before, and only if the link is the announced one. It uses the result only if its digest is the announced
one. So a delta that is damaged, skipped, applied twice or out of order is refused with the reason.
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
from ..pushes import DeltaDigest
from .delta import Piece, integers
from .digest import CHUNK_BYTES, ITEM_BYTES, chunk_hash

MAGIC = b"TIRDELTA"
_END = struct.Struct("<Q8s")


class DeltaWriter:
    """Writes a delta file part by part. Only the index is kept in memory."""

    def __init__(self, out: BinaryIO, base: str, base_version: int) -> None:
        """Begin a file.

        Args:
            out: The open file.
            base: Digest of the weights before.
            base_version: Version of the weights before.
        """
        self.out = out
        self.base = base
        self.base_version = base_version
        self.size = 0
        """Bytes written so far."""
        self._lock = threading.Lock()
        self._parts: list[list[Any]] = []
        self._write(MAGIC)

    def add(self, name: str, pieces: list[tuple[int, Piece]]) -> None:
        """Write a part. May be called by any thread.

        Args:
            name: The tensor.
            pieces: Its changes: the byte of the tensor at which a piece begins, and the piece.

        Raises:
            OSError: The disk is full or failed.
        """
        data = b"".join(array.view(np.uint8).data for _, piece in pieces for array in piece)
        part_hash = chunk_hash(data).hex()
        with self._lock:
            offset = self.size
            index = []
            for begin, piece in pieces:
                index.append([begin, offset, len(piece.gaps), len(piece.wides)])
                offset += piece.nbytes
            self._parts.append([name, len(data), part_hash, index])
            self._write(data)

    def end(self, digest: str) -> DeltaDigest:
        """Write the index, and return the digests that announce the file.

        Args:
            digest: Digest of the weights after the delta.
        """
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
    """A part of a delta file does not have the hash in the index."""


class Delta:
    """A delta file for reading. Its index is read at once, its parts when `pieces` needs them."""

    def __init__(self, path: Path) -> None:
        """Read the index.

        Raises:
            DeltaRefused: The file is not a delta, or is incomplete.
        """
        self.path = path
        try:
            with open(path, "rb") as f:
                fd = f.fileno()
                end = os.fstat(fd).st_size - _END.size
                length, magic = _END.unpack(os.pread(fd, _END.size, max(0, end)))
                if magic != MAGIC or os.pread(fd, len(MAGIC), 0) != MAGIC:
                    raise ValueError("it does not begin or end like a delta")
                if length > end:
                    raise ValueError(f"an index of {length} bytes does not fit into it")
                text = os.pread(fd, length, end - length)
                # The kernel reads the file ahead at the disk's speed while the index is parsed, rather than one page
                # fault after the other later. The index is read before, so that it does not wait for that.
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)
                # It is turned into a plain array because every slice of a memmap has a cost.
                self.file = np.asarray(np.memmap(f, np.uint8, mode="r"))
            index = json.loads(text)
            self.base = str(index["base"])
            self.base_version = int(index["base_version"])
            self.digest = str(index["digest"])
            self.link = _link(self.base, text)
            """Compare it with the announced link before you use a part."""
            self._chunks: dict[tuple[str, int], list[tuple[int, int, int, int, int]]] = {}
            """(tensor, first byte of a chunk) -> for each piece in it: first byte within the chunk, index of its part,
            offset in the file, entries, wides."""
            self._parts: list[tuple[slice, str]] = []
            """For each part its bytes in the file and its hash."""
            part_begin = len(MAGIC)
            for name, size, part_hash, pieces in index["parts"]:
                for begin, offset, entries, wides in pieces:
                    chunk_begin = begin // CHUNK_BYTES * CHUNK_BYTES
                    piece = begin - chunk_begin, len(self._parts), offset, entries, wides
                    self._chunks.setdefault((name, chunk_begin), []).append(piece)
                self._parts.append((slice(part_begin, part_begin + size), part_hash))
                part_begin += size
            if part_begin != end - length:
                raise ValueError(f"its parts end at byte {part_begin}, its index begins at {end - length}")
        except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
            raise DeltaRefused(f"{path} is not a complete delta: {error}.") from error

    @property
    def tensors(self) -> set[str]:
        """Names of the tensors that it changes."""
        return {name for name, _ in self._chunks}

    def pieces(self, name: str, part: slice, dtype: str) -> list[tuple[int, Piece]]:
        """Return the changes in a chunk of a tensor. May be called by any thread.

        Args:
            name: The tensor.
            part: The chunk's bytes of the tensor (digest.chunks).
            dtype: safetensors name of its dtype.

        Returns:
            For each piece the byte within the chunk at which it begins, and the piece, in ascending order.

        Raises:
            Damaged: A part of the file has another hash than its index says.
        """
        chunk = sorted(self._chunks.get((name, part.start), []))
        for part_index in {index for _, index, *_ in chunk}:
            where, announced_hash = self._parts[part_index]
            if chunk_hash(self.file[where]).hex() != announced_hash:
                raise Damaged(f"bytes {where.start} to {where.stop} of the file are not those that were written")
        pieces = []
        for begin, _, offset, entries, wides in chunk:
            differences_begin = offset + entries
            wides_begin = offset + 2 * entries
            gaps = self.file[offset:differences_begin]
            differences = self.file[differences_begin:wides_begin].view(np.int8)
            # The wides are copied because they need not be aligned in the file.
            values = self.file[wides_begin : wides_begin + wides * ITEM_BYTES[dtype]].tobytes()
            pieces.append((begin, Piece(gaps, differences, np.frombuffer(values, integers(dtype)))))
        return pieces
