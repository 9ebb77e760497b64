"""Write what changed since the last push into a delta file (weights/delta_file.py), while tensors are gathered.

    all ranks   gather a bucket ──> the next bucket ──> ...
    rank 0      its threads: compare a chunk with the last push, replace the old chunk, hash the new one, in pieces that
                fit the core's cache; what changed in the chunk becomes a part of the file

If there is no earlier push to continue, or too much changed, no delta is written and a full push takes its place.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
from torch import nn

from ...pushes import BUCKET_BYTES, DeltaDigest
from ...weights.delta import PIECE_BYTES, Piece, integers, take_over
from ...weights.delta_file import DeltaWriter
from ...weights.digest import ChunkHash, chunk_hash, combine, hashing_threads
from ..lora import Weight, hf_weights
from ..weights_file import DTYPES, Buckets, hash_of_tensor, map_chunks, nbytes, on_rank_0
from .last_push import LastPush
from .write_behind import write_behind

MAX_SHARE = 0.5
"""Largest size of a delta as a share of a full push. Beyond it, applying the delta costs more than it saves."""


def write_delta(
    module: nn.Module,
    path: Path,
    last: LastPush | None,
    *,
    base_version: int,
    rank: int,
    bucket_bytes: int = BUCKET_BYTES,
) -> DeltaDigest | None:
    """Write the changes of a model's weights since the last push. Collective.

    Args:
        module: The model.
        path: The file.
        last: On rank 0: the weights of the last push. Afterwards it holds the new weights.
        base_version: The version of the last push.
        rank: This rank.
        bucket_bytes: Most bytes that are gathered at the same time.

    Returns:
        The digests of the delta on rank 0; None if a full push has to take its place. None on other ranks.

    Raises:
        OSError: On every rank if rank 0's disk is full or fails.
    """
    weights = hf_weights(module)

    def write(gathered: Buckets) -> DeltaDigest | None:
        sizes = {w.name: nbytes(w) for w in weights}
        if last is None or last.digest is None or {name: len(data) for name, data in last.tensors.items()} != sizes:
            return None
        return _write(gathered, path, last, base_version, int(MAX_SHARE * sum(sizes.values())))

    return on_rank_0(weights, write, rank=rank, bucket_bytes=bucket_bytes)


def _write(gathered: Buckets, path: Path, last: LastPush, base_version: int, limit: int) -> DeltaDigest | None:
    """Write the delta on rank 0. Return None, without a file, if it is larger than `limit` bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    base = last.digest
    last.digest = None  # meanwhile `last` holds neither the old weights nor the new ones
    assert base is not None
    try:
        with (
            open(partial, "wb") as out,
            hashing_threads() as pool,
            write_behind(out.fileno()) as behind,
        ):
            writer = DeltaWriter(out, base, base_version)

            def compare_chunk(weight: Weight, part: slice, data: np.ndarray) -> bytes:
                """Write the changes of a chunk, replace the old chunk, and return the new one's hash."""
                old = last.tensors[weight.name][part]
                if writer.size > limit:
                    # There will be no delta. What is left only has to be copied and hashed.
                    old[:] = data
                    return chunk_hash(data)
                chunk_digest, pieces = _replace_and_compare(old, data, DTYPES[weight.tensor.dtype])
                if pieces:
                    writer.add(weight.name, [(part.start + begin, piece) for begin, piece in pieces])
                return chunk_digest

            hashes = {}
            for weight, results in map_chunks(gathered, compare_chunk, pool):
                chunk_hashes = []
                for chunk_digest in results:
                    chunk_hashes.append(chunk_digest)
                    behind.follow(writer.size)
                hashes[weight.name] = hash_of_tensor(weight, chunk_hashes)
            digest = combine(hashes)
            if writer.size > limit:
                partial.unlink()
                last.digest = digest
                return None
            changes = writer.end(digest)
            out.flush()
            behind.end()
            os.fsync(out.fileno())
        os.replace(partial, path)
        last.digest = digest
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise
    return changes


def _replace_and_compare(old: np.ndarray, new: np.ndarray, dtype: str) -> tuple[bytes, list[tuple[int, Piece]]]:
    """Compare two versions of a chunk, [bytes] uint8, and overwrite the old one with the new one.

    Everything happens in one pass: a piece is hashed while it is still in the core's cache.

    Returns:
        The hash of the new chunk, and its changed pieces with the byte at which each begins.
    """
    pieces = []
    hasher = ChunkHash()
    for begin in range(0, len(new), PIECE_BYTES):
        old_piece = old[begin : begin + PIECE_BYTES]
        new_piece = new[begin : begin + PIECE_BYTES]
        if piece := take_over(old_piece.view(integers(dtype)), new_piece.view(integers(dtype))):
            pieces.append((begin, piece))
        hasher.update(new_piece.data)
    return hasher.digest(), pieces
