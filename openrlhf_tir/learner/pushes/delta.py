"""Weights delta: what changed since the last push -> a delta file (weights/delta_file.py), written by rank 0 while
tensors are gathered.

    all ranks   gather a bucket ──> the next bucket ──> ...
    rank 0      its threads: compare a chunk with the last push, take it over, hash it, a cache's worth at a time, and
                write what changed in it as a part of the file

A full push goes in its place when there is nothing to continue, or when more changed than is worth it: then None."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
from torch import nn

from ...types import DeltaDigest
from ...weights.delta import PIECE_BYTES, Piece, integers, take_over
from ...weights.delta_file import DeltaWriter
from ...weights.digest import ChunkHash, chunk_hash, combine, hashing_threads
from ..lora import Weight, hf_weights
from ..weights_file import BUCKET_BYTES, DTYPES, Buckets, nbytes, of_tensor, on_rank_0, over_chunks
from .last_push import LastPush
from .write_behind import write_behind

WORTH_IT = 0.5
"""The largest share of a full push's bytes that a delta may have; beyond, applying a delta costs more than it saves."""


def write_delta(
    module: nn.Module,
    path: Path,
    last: LastPush | None,
    *,
    base_version: int,
    rank: int,
    sharded: bool,
    bucket_bytes: int = BUCKET_BYTES,
) -> DeltaDigest | None:
    """Collective. The changes on rank 0, None elsewhere; None on rank 0 too when a full push must go in its place.
    `last`: rank 0's, which then is these weights. Raises OSError on every rank when rank 0's disk refuses."""
    weights = hf_weights(module)

    def work(gathered: Buckets) -> DeltaDigest | None:
        known = {w.name: nbytes(w) for w in weights}
        if last is None or last.digest is None or {name: len(data) for name, data in last.tensors.items()} != known:
            return None
        return _write(gathered, path, last, base_version, int(WORTH_IT * sum(known.values())))

    return on_rank_0(weights, work, rank=rank, sharded=sharded, bucket_bytes=bucket_bytes)


def _write(gathered: Buckets, path: Path, last: LastPush, base_version: int, limit: int) -> DeltaDigest | None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    base, last.digest = last.digest, None  # while it is neither the old weights nor the new
    assert base is not None
    try:
        with (
            open(partial, "wb") as out,
            hashing_threads() as pool,
            write_behind(out.fileno()) as behind,
        ):
            writer = DeltaWriter(out, base, base_version)

            def compared(weight: Weight, part: slice, data: np.ndarray) -> bytes:
                kept = last.tensors[weight.name][part]
                if writer.size > limit:
                    kept[:] = data
                    return chunk_hash(data)
                hashed, found = _taken_over(kept, data, DTYPES[weight.tensor.dtype])
                if found:
                    writer.add(weight.name, [(part.start + begin, piece) for begin, piece in found])
                return hashed

            hashes = {}
            for weight, results in over_chunks(gathered, compared, pool):
                found = []
                for hashed in results:
                    found.append(hashed)
                    behind.follow(writer.size)
                hashes[weight.name] = of_tensor(weight, found)
            last.digest = combine(hashes)
            if writer.size > limit:
                partial.unlink()
                return None
            changes = writer.end(last.digest)
            out.flush()
            behind.end()
            os.fsync(out.fileno())
        os.replace(partial, path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise
    return changes


def _taken_over(kept: np.ndarray, data: np.ndarray, dtype: str) -> tuple[bytes, list[tuple[int, Piece]]]:
    """The hash of a chunk, [bytes] uint8, and what changed in it: (byte, piece). `kept` then is `data`. One pass: what
    is compared is hashed while it is in the core's cache."""
    found, hashed = [], ChunkHash()
    for begin in range(0, len(data), PIECE_BYTES):
        old, new = (part[begin : begin + PIECE_BYTES] for part in (kept, data))
        if piece := take_over(old.view(integers(dtype)), new.view(integers(dtype))):
            found.append((begin, piece))
        hashed.update(new.data)
    return hashed.digest(), found
