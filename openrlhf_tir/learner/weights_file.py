"""Write a ZeRO-3 sharded model into one safetensors file with Hugging Face names, while its tensors are gathered.

    all ranks   gather a bucket ──> the next bucket ──> ...
    rank 0      its threads: hash a chunk and write it to its place in the file ──> the digest

Beside the shards this takes the memory of one bucket on every rank, and of two on rank 0's host: while one is written,
the next one is gathered. On CPUs there is no second copy of a bucket, so gathering waits until it is written. LoRA's
updates are added to their layers meanwhile (lora.py). The file gets its name only when it is complete (temporary name,
fsync, rename).
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

from ..pushes import BUCKET_BYTES, Item
from ..weights import delta
from ..weights.broadcast.stream import TORCH
from ..weights.digest import chunk_hash, chunks, combine, hashing_threads, tensor_hash
from ..weights.host_bytes import host_bytes
from ..weights.push_files import SPARE
from .agreement import agree
from .lora import Weight, hf_weights
from .pushes.last_push import LastPush

END = ""
"""Key of the end of the last tensor among the offsets by tensor name."""
DTYPES = {dtype: name for name, dtype in TORCH.items()}
"""safetensors' names of the dtypes."""
Buckets = Iterator[list[tuple[Weight, torch.Tensor]]]
"""Buckets of gathered tensors. Those of a bucket are valid until the next bucket is requested."""
T = TypeVar("T")


def full_shape(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the shape of the whole tensor, which ZeRO-3 may have partitioned."""
    return tuple(getattr(tensor, "ds_shape", tensor.shape))


def nbytes(weight: Weight) -> int:
    """Return the size of the whole tensor in bytes."""
    tensor = weight.tensor
    return torch.Size(full_shape(tensor)).numel() * tensor.element_size()


def buckets(weights: list[Weight], limit: int) -> Iterator[list[Weight]]:
    """Yield consecutive weights of at most `limit` bytes together. A weight that is larger is a bucket of its own."""
    bucket: list[Weight] = []
    size = 0
    for weight in weights:
        if bucket and size + nbytes(weight) > limit:
            yield bucket
            bucket = []
            size = 0
        bucket.append(weight)
        size += nbytes(weight)
    if bucket:
        yield bucket


def items_of(bucket: list[Weight]) -> list[Item]:
    """Return names, dtypes and shapes of a bucket's tensors, as broadcasts and exposed memory announce them."""
    return [Item(weight.name, DTYPES[weight.tensor.dtype], full_shape(weight.tensor)) for weight in bucket]


def _header(weights: list[Weight]) -> bytes:
    """Return the header of a safetensors file: the length of a JSON text, and that text."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for weight in weights:
        size = nbytes(weight)
        entries[weight.name] = {
            "dtype": DTYPES[weight.tensor.dtype],
            "shape": list(full_shape(weight.tensor)),
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
    bucket_bytes: int = BUCKET_BYTES,
    last: LastPush | None = None,
) -> str | None:
    """Write all weights of a model into one file. Collective. See `write_file`."""
    return write_file(hf_weights(module), path, rank=rank, bucket_bytes=bucket_bytes, last=last)


def write_file(
    weights: list[Weight],
    path: Path,
    *,
    rank: int,
    bucket_bytes: int = BUCKET_BYTES,
    last: LastPush | None = None,
) -> str | None:
    """Write weights into one safetensors file. Collective; the file is complete on return.

    Args:
        weights: The weights, in the order of the file.
        path: The file. Directories are created.
        rank: This rank; rank 0 writes.
        bucket_bytes: Most bytes that are gathered at the same time.
        last: On rank 0: receives a copy of what was written, so that the next push can be a delta. None: no copy.

    Returns:
        The digest of the weights (weights/digest.py) on rank 0, None elsewhere.

    Raises:
        OSError: On every rank if rank 0's disk is full or fails.
    """
    return on_rank_0(
        weights, lambda gathered: _write(weights, gathered, path, last), rank=rank, bucket_bytes=bucket_bytes
    )


def on_rank_0(weights: list[Weight], work: Callable[[Buckets], T], *, rank: int, bucket_bytes: int) -> T | None:
    """Run `work` on rank 0 with the gathered weights, while the other ranks take part in gathering. Collective.

    Returns:
        What `work` returned on rank 0, None elsewhere.

    Raises:
        OSError: On every rank if `work` raised one.
    """
    gathered = _gathered(weights, bucket_bytes)
    result = None
    fault = None
    if rank == 0:
        try:
            result = work(gathered)
        except OSError as error:
            fault = error
    for _ in gathered:
        pass  # every rank gathers to the end, because rank 0 may have stopped in the middle
    agree(fault)
    return result


def _write(weights: list[Weight], gathered: Buckets, path: Path, last: LastPush | None) -> str:
    """Write the file on rank 0 and return the digest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    header = _header(weights)
    names = [*[weight.name for weight in weights], END]
    offsets = dict(zip(names, len(header) + np.cumsum([0, *map(nbytes, weights)]), strict=True))
    if last is not None:
        last.begin({weight.name: nbytes(weight) for weight in weights})
    try:
        with _open_partial(partial) as out, hashing_threads() as pool:
            fd = out.fileno()
            os.truncate(fd, int(offsets[END]))
            write_at(fd, header, 0)

            def write_chunk(weight: Weight, part: slice, data: np.ndarray) -> bytes:
                """Write a chunk of a tensor, copy it for the next delta, and return its hash."""
                write_at(fd, data, int(offsets[weight.name]) + part.start)
                if last is not None:
                    last.tensors[weight.name][part] = data
                return chunk_hash(data)

            results = map_chunks(gathered, write_chunk, pool)
            digest = combine({weight.name: hash_of_tensor(weight, hashes) for weight, hashes in results})
            os.fsync(fd)
        os.replace(partial, path)
    except OSError:
        with suppress(OSError):
            partial.unlink()  # a full disk gets its space back
        raise
    if last is not None:
        last.digest = digest
        delta.prepare(delta.compile_take_over, {DTYPES[weight.tensor.dtype] for weight in weights})
    return digest


def _open_partial(partial: Path) -> BinaryIO:
    """Open the file for writing: the spare file of an earlier push if there is one, otherwise a new file.

    A file whose pages are allocated already is written twice as fast.
    """
    with suppress(FileNotFoundError):
        os.replace(partial.with_name(SPARE), partial)
        return open(partial, "r+b")
    return open(partial, "wb")


def hash_of_tensor(weight: Weight, hashes: Iterable[bytes]) -> str:
    """Return the hash of a tensor, given the hashes of its chunks in order."""
    return tensor_hash(DTYPES[weight.tensor.dtype], full_shape(weight.tensor), hashes)


def write_at(fd: int, data: Any, offset: int) -> None:
    """Write all of `data` (bytes, or [bytes] uint8) at a byte offset of the file. May be called by any thread.

    Raises:
        OSError: The disk is full or fails.
    """
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view = view[written:]
        offset += written


def map_chunks(
    gathered: Buckets, task: Callable[[Weight, slice, np.ndarray], T], pool: ThreadPoolExecutor
) -> Iterator[tuple[Weight, Iterator[T]]]:
    """Call `task` on every chunk of every tensor in the pool's threads, while the next bucket is gathered.

    Args:
        gathered: The buckets.
        task: Called with the weight, the bytes of the tensor that the chunk covers, and the chunk [bytes] uint8.
        pool: Runs the tasks.

    Yields:
        Each weight, in order, with the results of its chunks. Take all results before you request the next weight; an
        exception of a task is raised there.
    """
    pending: list[tuple[Weight, list[Future[T]]]] = []
    for bucket in gathered:
        started = []
        for (weight, _), data in zip(bucket, host_bytes([tensor for _, tensor in bucket]), strict=True):
            started.append((weight, [pool.submit(task, weight, part, data[part]) for part in chunks(len(data))]))
        yield from _results(pending)
        pending = started
        # `host_bytes` copies CUDA tensors only. The memory of others is released when the next bucket is requested, so
        # their tasks have to end before.
        if not all(tensor.is_cuda for _, tensor in bucket):
            yield from _results(pending)
            pending = []
    yield from _results(pending)


def _results(started: list[tuple[Weight, list[Future[T]]]]) -> Iterator[tuple[Weight, Iterator[T]]]:
    for weight, futures in started:
        yield weight, (future.result() for future in futures)


def _gathered(weights: list[Weight], bucket_bytes: int) -> Buckets:
    """Gather the weights bucket by bucket. Collective."""
    for bucket in buckets(weights, bucket_bytes):
        with deepspeed.zero.GatheredParameters([p for weight in bucket for p in weight.gathered]):
            yield [(weight, weight.value()) for weight in bucket]
