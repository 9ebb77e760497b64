"""Digest: named tensors -> one hex string, the same for tensors in memory and for a safetensors file. No torch import.

    chunk hash  = XXH3-128 of 16 MiB of a tensor's bytes (its last chunk is shorter)
    tensor hash = XXH3-128(dtype, shape, chunk hashes)          digest = XXH3-128(sorted "name hash" lines)

The order of the tensors, the file's header layout and its metadata do not matter; one changed bit, name, dtype or shape
does. Chunks are hashed by several threads at once (xxhash lets go of the interpreter's lock), so that the memory's
bandwidth is the bound. The hash finds every accident, not a forger: whoever can write the file can also write what
announces it.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from ..errors import WeightsUnverified

CHUNK_BYTES = 16 * 2**20
"""Part of the definition: with another size, digests are others."""
MAX_THREADS = 8
"""More gain nothing: a few threads take all of the memory's bandwidth."""
_SAFETENSORS_NAME = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


class Entry(NamedTuple):
    """A tensor of a safetensors file: its bytes are [begin, end) of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def tensors_digest(tensors: Iterable[tuple[str, Any]]) -> str:
    """One digest of all (name, numpy array or torch tensor on any device) pairs. bfloat16 counts as itself, not as what
    numpy would make of it. One tensor at a time: a caller may gather and free them while iterating."""
    with hashing_threads() as pool:
        return combine({name: _of_tensor(*raw(tensor), pool) for name, tensor in tensors})


def mapped(path: Path) -> np.ndarray:
    """A file, [bytes] uint8, to be read."""
    return np.memmap(path, np.uint8, mode="r")


def digest_file(path: Path, of: Callable[[Path], np.ndarray] = mapped) -> str:
    """The digest of a safetensors file, which is read once, by way of what `of` makes of it. Raises WeightsUnverified
    when the file is missing, cut short or no safetensors file."""
    try:
        data = of(path)
        with hashing_threads() as pool:
            return combine({e.name: _of_tensor(e.dtype, e.shape, data[e.begin : e.end], pool) for e in entries(data)})
    except (OSError, ValueError, KeyError, TypeError, struct.error) as e:
        raise WeightsUnverified(
            f"{path} is no complete safetensors file: {e}. Check that writing it finished and that this node sees it."
        ) from e


@contextmanager
def hashing_threads() -> Iterator[ThreadPoolExecutor]:
    """As many as this process has cores for. What was not begun when the body ends by an error is given up."""
    pool = ThreadPoolExecutor(min(MAX_THREADS, len(os.sched_getaffinity(0))), thread_name_prefix="weights")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def entries(file: np.ndarray) -> list[Entry]:
    """What a safetensors file, [bytes] uint8, holds, in the order of its bytes. Raises ValueError, KeyError, TypeError
    or struct.error for what is none, or not whole."""
    (header_bytes,) = struct.unpack_from("<Q", file.data)
    start = 8 + header_bytes
    header = json.loads(file[8:start].tobytes())
    header.pop("__metadata__", None)
    found = sorted(
        (
            Entry(name, h["dtype"], tuple(h["shape"]), *(start + at for at in h["data_offsets"]))
            for name, h in header.items()
        ),
        key=lambda e: e.begin,
    )
    at = start
    for e in found:
        if e.begin != at or e.end - e.begin != math.prod(e.shape) * ITEM_BYTES[e.dtype]:
            raise ValueError(
                f"tensor {e.name} has bytes {e.begin} to {e.end}, which is not where and as large as it should be"
            )
        at = e.end
    if at != len(file):
        raise ValueError(f"the header announces {at} bytes, the file has {len(file)}")
    return found


def raw(tensor: Any) -> tuple[str, list[int], Any]:
    """-> safetensors dtype name, shape, bytes in C order (uint8, of the tensor's own memory where it is contiguous and
    on the CPU)."""
    shape = list(tensor.shape)
    name = _SAFETENSORS_NAME[str(tensor.dtype).removeprefix("torch.")]
    if hasattr(tensor, "detach"):
        import torch

        return name, shape, tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return name, shape, np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)


def chunks(nbytes: int) -> list[slice]:
    """How a tensor of so many bytes is cut up for hashing."""
    return [slice(begin, min(begin + CHUNK_BYTES, nbytes)) for begin in range(0, nbytes, CHUNK_BYTES)]


def chunk_hash(data: Any) -> bytes:
    return xxhash.xxh3_128_digest(data)


ChunkHash = xxhash.xxh3_128
"""`chunk_hash` of what it was given with `update`, part by part: `digest()`."""


def tensor_hash(dtype: str, shape: Iterable[int], hashes: Iterable[bytes]) -> str:
    """`hashes`: of its chunks, in order."""
    return xxhash.xxh3_128_hexdigest(f"{dtype} {list(shape)} ".encode() + b"".join(hashes))


def combine(hashes: dict[str, str]) -> str:
    """Tensor hashes by name -> the digest of all."""
    return xxhash.xxh3_128_hexdigest("".join(f"{name} {h}\n" for name, h in sorted(hashes.items())).encode())


def _of_tensor(dtype: str, shape: Iterable[int], data: np.ndarray, pool: ThreadPoolExecutor) -> str:
    """`data`: [bytes] uint8."""
    return tensor_hash(dtype, shape, pool.map(chunk_hash, [data[part] for part in chunks(len(data))]))
