"""Digest: named tensors -> one hex string, the same for tensors in memory and for a safetensors file. No torch import.

    tensor hash = sha256(dtype, shape, bytes)          digest = sha256(sorted "name hash" lines)

The order of the tensors, the file's header layout and its metadata do not matter; one changed bit, name, dtype or shape does.
Tensors are hashed one at a time, so a caller may gather and free them while iterating.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import WeightsUnverified

_SAFETENSORS_NAME = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


def tensors_digest(tensors: Iterable[tuple[str, Any]]) -> str:
    """One digest of all (name, numpy array or torch tensor on any device) pairs. bfloat16 counts as itself, not as what numpy would make of it."""
    return _combine({name: _tensor_hash(*_raw(tensor)) for name, tensor in tensors})


def digest_file(path: Path) -> str:
    """The digest of a safetensors file, which is read once. Raises WeightsUnverified when the file is missing, cut short or no safetensors file."""
    try:
        with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data, memoryview(data) as view:
            (header_bytes,) = struct.unpack_from("<Q", view)
            start = 8 + header_bytes
            header = json.loads(bytes(view[8:start]))
            header.pop("__metadata__", None)
            ends = [start + h["data_offsets"][1] for h in header.values()]
            if max(ends, default=start) != len(view):
                raise ValueError(f"the header announces {max(ends, default=start)} bytes, the file has {len(view)}")
            return _combine({name: _file_tensor_hash(view, start, h) for name, h in header.items()})
    except (OSError, ValueError, KeyError, struct.error) as e:
        raise WeightsUnverified(f"{path} is no complete safetensors file: {e}. Check that writing it finished and that this node sees it.") from e


def _file_tensor_hash(view: memoryview, start: int, h: dict[str, Any]) -> str:
    begin, end = h["data_offsets"]
    with view[start + begin : start + end] as part:
        return _tensor_hash(h["dtype"], h["shape"], part)


def _raw(tensor: Any) -> tuple[str, list[int], Any]:
    """-> safetensors dtype name, shape, bytes in C order."""
    shape = list(tensor.shape)
    name = _SAFETENSORS_NAME[str(tensor.dtype).removeprefix("torch.")]
    if hasattr(tensor, "detach"):
        import torch

        return name, shape, tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return name, shape, np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)


def _tensor_hash(dtype: str, shape: Iterable[int], data: Any) -> str:
    h = hashlib.sha256(f"{dtype} {list(shape)} ".encode())
    h.update(data)
    return h.hexdigest()


def _combine(hashes: dict[str, str]) -> str:
    return hashlib.sha256("".join(f"{name} {h}\n" for name, h in sorted(hashes.items())).encode()).hexdigest()
