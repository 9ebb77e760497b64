"""Weights file: a ZeRO-3 sharded model -> one safetensors file with HF names, written by rank 0 while tensors are
gathered.

    all ranks   gather a bucket ──> the next bucket ──> ...
    rank 0      its threads: hash a chunk, write it where it belongs ──> the digest

Memory beyond the shards is one bucket on every rank, and two on the host of rank 0: the next is gathered while one is
written. On CPUs, where what was gathered is what is written, a bucket is waited for. LoRA's updates are added to their
layers meanwhile (lora.py). The file appears under its name only when complete (temporary name, fsync, rename).
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import deepspeed
import numpy as np
import torch
from torch import nn

from ..weights import delta
from ..weights.digest import chunk_hash, chunks, combine, hashing_threads, raw, tensor_hash
from ..weights.push_files import SPARE
from .agreement import agree
from .lora import Weight, hf_weights
from .pushes.last_push import LastPush

BUCKET_BYTES = 512 * 2**20
END = ""
"""What stands in place of a tensor's name after the last tensor."""
DTYPES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.bool: "BOOL",
}
Buckets = Iterator[list[tuple[Weight, torch.Tensor]]]
"""Gathered tensors; those of a bucket are valid until the next is asked for."""
T = TypeVar("T")


def full_shape(tensor: torch.Tensor) -> tuple[int, ...]:
    """The shape before ZeRO-3 cut it up."""
    return tuple(getattr(tensor, "ds_shape", tensor.shape))


def nbytes(weight: Weight) -> int:
    """Bytes of the whole tensor."""
    tensor = weight.tensor
    return torch.Size(full_shape(tensor)).numel() * tensor.element_size()


def buckets(weights: list[Weight], limit: int) -> Iterator[list[Weight]]:
    """Consecutive weights of at most `limit` bytes together; a larger one is alone."""
    bucket: list[Weight] = []
    size = 0
    for item in weights:
        if bucket and size + nbytes(item) > limit:
            yield bucket
            bucket, size = [], 0
        bucket.append(item)
        size += nbytes(item)
    if bucket:
        yield bucket


def _header(weights: list[Weight]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for weight in weights:
        size, tensor = nbytes(weight), weight.tensor
        entries[weight.name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(full_shape(tensor)),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the data to 8 bytes
    return struct.pack("<Q", len(text)) + text


def write_weights(
    module: nn.Module,
    path: Path,
    *,
    rank: int,
    sharded: bool,
    bucket_bytes: int = BUCKET_BYTES,
    last: LastPush | None = None,
) -> str | None:
    """The model's. Collective. Returns the digest (weights/digest.py) on rank 0, None elsewhere. Raises OSError on
    every rank when rank 0's disk refuses.

    `last`, of rank 0: keeps a copy of what was written, for the next push to be a delta.
    """
    return write_file(hf_weights(module), path, rank=rank, sharded=sharded, bucket_bytes=bucket_bytes, last=last)


def write_file(
    weights: list[Weight],
    path: Path,
    *,
    rank: int,
    sharded: bool,
    bucket_bytes: int = BUCKET_BYTES,
    last: LastPush | None = None,
) -> str | None:
    """See write_weights, which is this for all of a model's."""
    return on_rank_0(
        weights,
        lambda gathered: _write(weights, gathered, path, last),
        rank=rank,
        sharded=sharded,
        bucket_bytes=bucket_bytes,
    )


def on_rank_0(
    weights: list[Weight], work: Callable[[Buckets], T], *, rank: int, sharded: bool, bucket_bytes: int
) -> T | None:
    """Collective: `work` on rank 0, with the gathered weights; the others take part in the gathering. OSError on one is
    raised on all."""
    gathered = _gathered(weights, sharded, bucket_bytes)
    made, fault = None, None
    if rank == 0:
        try:
            made = work(gathered)
        except OSError as e:
            fault = e
    for _ in gathered:  # to the end on all ranks: rank 0 may have stopped in the middle
        pass
    agree(fault)
    return made


def _write(weights: list[Weight], gathered: Buckets, path: Path, last: LastPush | None) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    header = _header(weights)
    begins = dict(
        zip([*[w.name for w in weights], END], len(header) + np.cumsum([0, *map(nbytes, weights)]), strict=True)
    )
    if last is not None:
        last.begin({w.name: nbytes(w) for w in weights})
    try:
        with _opened(partial) as out, hashing_threads() as pool:
            fd = out.fileno()
            os.truncate(fd, int(begins[END]))
            store(fd, header, 0)

            def hashed(weight: Weight, part: slice, data: np.ndarray) -> bytes:
                store(fd, data, int(begins[weight.name]) + part.start)
                if last is not None:
                    last.tensors[weight.name][part] = data
                return chunk_hash(data)

            digest = combine({w.name: of_tensor(w, hashes) for w, hashes in over_chunks(gathered, hashed, pool)})
            os.fsync(fd)
        os.replace(partial, path)
    except OSError:
        with suppress(OSError):
            partial.unlink()  # a full disk gets its room back
        raise
    if last is not None:
        last.digest = digest
        delta.prepare(delta.compile_take_over, {DTYPES[w.tensor.dtype] for w in weights})
    return digest


def _opened(partial: Path) -> BinaryIO:
    """For writing: the file of an earlier push where there is one to spare, else a new one. What has its memory already
    is written twice as fast."""
    with suppress(FileNotFoundError):
        os.replace(partial.with_name(SPARE), partial)
        return open(partial, "r+b")
    return open(partial, "wb")


def of_tensor(weight: Weight, hashes: Iterable[bytes]) -> str:
    """Its hash from those of its chunks."""
    return tensor_hash(DTYPES[weight.tensor.dtype], full_shape(weight.tensor), hashes)


def store(fd: int, data: Any, at: int) -> None:
    """All of `data`, bytes or [bytes] uint8, at byte `at` of the file; from any thread. Raises OSError."""
    view = memoryview(data)
    while view:
        n = os.pwrite(fd, view, at)
        view, at = view[n:], at + n


def over_chunks(
    gathered: Buckets, task: Callable[[Weight, slice, np.ndarray], T], pool: ThreadPoolExecutor
) -> Iterator[tuple[Weight, Iterator[T]]]:
    """`task` on every chunk, [bytes] uint8, in the pool's threads, while the next bucket is gathered. Yields tensor by
    tensor, in order, its chunks' results as they come: all of them are to be taken before the next tensor is asked
    for. Raises what a task raised."""
    before: list[tuple[Weight, list[Future[T]]]] = []
    for bucket in gathered:
        now = []
        for weight, tensor in bucket:
            data = raw(tensor)[2]
            now.append((weight, [pool.submit(task, weight, part, data[part]) for part in chunks(len(data))]))
        yield from _results(before)
        before = now
        # no copy was made: the memory is given back when the next bucket is asked for
        if not all(tensor.is_cuda for _, tensor in bucket):
            yield from _results(before)
            before = []
    yield from _results(before)


def _results(begun: list[tuple[Weight, list[Future[T]]]]) -> Iterator[tuple[Weight, Iterator[T]]]:
    for weight, futures in begun:
        yield weight, (f.result() for f in futures)


def _gathered(weights: list[Weight], sharded: bool, bucket_bytes: int) -> Buckets:
    for bucket in buckets(weights, bucket_bytes):
        with deepspeed.zero.GatheredParameters([p for weight in bucket for p in weight.gathered], enabled=sharded):
            yield [(weight, weight.value()) for weight in bucket]
