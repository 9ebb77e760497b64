"""Compute one digest of named tensors, the same for tensors in memory and for a safetensors file. Imports no torch.

    chunk hash  = XXH3-128 of 16 MiB of a tensor's bytes (its last chunk is shorter)
    tensor hash = XXH3-128(dtype, shape, chunk hashes)
    digest      = XXH3-128(sorted "name hash" lines)

The order of the tensors, the layout of the file's header and its metadata do not matter. One changed bit, name, dtype
or shape changes the digest. Several threads hash chunks at once (xxhash releases the GIL), so memory bandwidth is the
limit. The digest detects accidents, not forgery: whoever can write the file can also write its announcement.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from ..errors import WeightsUnverified
from ..machine.cores import usable_cores

CHUNK_BYTES = 16 * 2**20
"""Size of a chunk. It is part of the digest's definition."""
MAX_THREADS = 8
"""More threads gain nothing, because a few already use the whole memory bandwidth."""
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
    """A tensor of a safetensors file. Its data are the bytes [begin, end) of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def tensors_digest(tensors: Iterable[tuple[str, Any]]) -> str:
    """Return the digest of tensors in memory.

    Args:
        tensors: Pairs of name and numpy array or torch tensor on any device. They are taken one at a time, so a caller
            may gather and free them while iterating. bfloat16 is hashed as bfloat16, which numpy does not have.
    """
    with hashing_threads() as pool:
        return combine({name: _hash_tensor(*raw(tensor), pool) for name, tensor in tensors})


def map_file(path: Path) -> np.ndarray:
    """Map a file to memory for reading, [bytes] uint8."""
    return np.memmap(path, np.uint8, mode="r")


def digest_file(path: Path, open_file: Callable[[Path], np.ndarray] = map_file) -> str:
    """Return the digest of a safetensors file, which is read once.

    Args:
        path: The file.
        open_file: Returns the file's content, [bytes] uint8.

    Raises:
        WeightsUnverified: The file is missing, truncated or not a safetensors file.
    """
    try:
        data = open_file(path)
        with hashing_threads() as pool:
            return combine({e.name: _hash_tensor(e.dtype, e.shape, data[e.begin : e.end], pool) for e in entries(data)})
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise WeightsUnverified(
            f"{path} is not a complete safetensors file: {error}. Check that writing it finished and that this node"
            " sees it."
        ) from error


@contextmanager
def hashing_threads() -> Iterator[ThreadPoolExecutor]:
    """Provide threads for hashing inside the block, one per core of this process and at most MAX_THREADS.

    Tasks that have not started when the block ends are cancelled.
    """
    pool = ThreadPoolExecutor(min(MAX_THREADS, usable_cores()), thread_name_prefix="weights")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def entries(file: np.ndarray) -> list[Entry]:
    """Return the tensors of a safetensors file, in the order of their bytes.

    Args:
        file: The file's content, [bytes] uint8.

    Raises:
        ValueError, KeyError, TypeError, struct.error: It is not a safetensors file, or is incomplete.
    """
    (header_bytes,) = struct.unpack_from("<Q", file.data)
    start = 8 + header_bytes
    header = json.loads(file[8:start].tobytes())
    header.pop("__metadata__", None)
    tensors = sorted(
        (
            Entry(name, h["dtype"], tuple(h["shape"]), *(start + offset for offset in h["data_offsets"]))
            for name, h in header.items()
        ),
        key=lambda e: e.begin,
    )
    expected_begin = start
    for e in tensors:
        if e.begin != expected_begin or e.end - e.begin != math.prod(e.shape) * ITEM_BYTES[e.dtype]:
            raise ValueError(f"tensor {e.name} has bytes {e.begin} to {e.end}, which is a wrong place or size")
        expected_begin = e.end
    if expected_begin != len(file):
        raise ValueError(f"the header announces {expected_begin} bytes, the file has {len(file)}")
    return tensors


def raw(tensor: Any) -> tuple[str, list[int], Any]:
    """Return a tensor's safetensors dtype name, its shape, and its bytes in C order as a uint8 array.

    The array shares the tensor's memory if the tensor is contiguous and on the CPU; otherwise it is a copy.
    """
    shape = list(tensor.shape)
    name = _SAFETENSORS_NAME[str(tensor.dtype).removeprefix("torch.")]
    if hasattr(tensor, "detach"):
        import torch

        return name, shape, tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return name, shape, np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)


def chunks(nbytes: int) -> list[slice]:
    """Return the chunks that a tensor of `nbytes` bytes is hashed in."""
    return [slice(begin, min(begin + CHUNK_BYTES, nbytes)) for begin in range(0, nbytes, CHUNK_BYTES)]


def chunk_hash(data: Any) -> bytes:
    """Return the hash of a chunk's bytes."""
    return xxhash.xxh3_128_digest(data)


ChunkHash = xxhash.xxh3_128
"""Computes `chunk_hash` of data that come in parts: `update(part)`, then `digest()`."""


def tensor_hash(dtype: str, shape: Iterable[int], hashes: Iterable[bytes]) -> str:
    """Return the hash of a tensor, given the hashes of its chunks in order."""
    return xxhash.xxh3_128_hexdigest(f"{dtype} {list(shape)} ".encode() + b"".join(hashes))


def combine(hashes: dict[str, str]) -> str:
    """Return the digest of all tensors, given their hashes by name."""
    return xxhash.xxh3_128_hexdigest("".join(f"{name} {h}\n" for name, h in sorted(hashes.items())).encode())


def _hash_tensor(dtype: str, shape: Iterable[int], data: np.ndarray, pool: ThreadPoolExecutor) -> str:
    """Return the hash of a tensor, given its bytes, [bytes] uint8."""
    return tensor_hash(dtype, shape, pool.map(chunk_hash, [data[part] for part in chunks(len(data))]))
