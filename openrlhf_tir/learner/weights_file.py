"""Weights file: a ZeRO-3 sharded model -> one safetensors file with HF names, written by rank 0 while tensors are gathered.

All ranks walk the same tensors; a bucket of them is gathered, rank 0 streams it to disk and into the digest, and it is dropped. Memory
beyond the shards is one bucket, on every rank. LoRA's updates are added to their layers meanwhile (lora.py). The file appears under its
name only when complete (temporary name, fsync, rename).
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import deepspeed
import torch
from torch import nn

from ..weights.digest import tensors_digest
from .agreement import agree
from .lora import Weight, hf_weights

BUCKET_BYTES = 512 * 2**20
DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64", torch.int64: "I64", torch.bool: "BOOL"}


def full_shape(tensor: torch.Tensor) -> tuple[int, ...]:
    """The shape before ZeRO-3 cut it up."""
    return tuple(getattr(tensor, "ds_shape", tensor.shape))


def nbytes(weight: Weight) -> int:
    """Of the whole tensor."""
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
        entries[weight.name] = {"dtype": DTYPES[tensor.dtype], "shape": list(full_shape(tensor)), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the data to 8 bytes
    return struct.pack("<Q", len(text)) + text


def write_weights(module: nn.Module, path: Path, *, rank: int, sharded: bool, bucket_bytes: int = BUCKET_BYTES) -> str | None:
    """The model's. Collective. Returns the digest (weights/digest.py) on rank 0, None elsewhere. Raises OSError on every rank when rank 0's disk refuses."""
    return write_file(hf_weights(module), path, rank=rank, sharded=sharded, bucket_bytes=bucket_bytes)


def write_file(weights: list[Weight], path: Path, *, rank: int, sharded: bool, bucket_bytes: int = BUCKET_BYTES) -> str | None:
    """See write_weights, which is this for all of a model's."""
    gathered = _gathered(weights, sharded, bucket_bytes)
    digest, fault = None, None
    if rank == 0:
        try:
            digest = _write(weights, gathered, path)
        except OSError as e:
            fault = e
    for _ in gathered:  # to the end on all ranks: rank 0 may have stopped in the middle
        pass
    agree(fault)
    return digest


def _write(weights: list[Weight], gathered: Iterator[tuple[str, torch.Tensor]], path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as out:
            out.write(_header(weights))
            digest = tensors_digest(_written(gathered, out))
            out.flush()
            os.fsync(out.fileno())
        os.replace(partial, path)
    except OSError:
        with suppress(OSError):
            partial.unlink()  # a full disk gets its room back
        raise
    return digest


def _gathered(weights: list[Weight], sharded: bool, bucket_bytes: int) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, full tensor) one after the other; valid until the next is asked for."""
    for bucket in buckets(weights, bucket_bytes):
        with deepspeed.zero.GatheredParameters([p for weight in bucket for p in weight.gathered], enabled=sharded):
            yield from ((weight.name, weight.value()) for weight in bucket)


def _written(tensors: Iterator[tuple[str, torch.Tensor]], out: BinaryIO) -> Iterator[tuple[str, torch.Tensor]]:
    """Passes tensors through, on the CPU, after writing their bytes (C order, little endian; a view as uint8 because numpy lacks bfloat16)."""
    for name, tensor in tensors:
        host = tensor.cpu().contiguous()
        out.write(host.flatten().view(torch.uint8).numpy())
        yield name, host
