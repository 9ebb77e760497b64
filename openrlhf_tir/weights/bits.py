"""Checksums of tensors, and their bits in blocks, for the read-back (readback.py)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import xxhash

_HASH_WEIGHT = 6364136223846793005
"""Odd multiplier of the device checksum's position weights (Knuth's MMIX generator)."""
_BLOCK = 1 << 22
"""Most elements that are compared or summed at a time, unless a row is longer. Limits the memory for it."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of the same size, in bytes, as a value."""


def _has_equal_bits(held: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Return whether two tensors on the CPU have the same bits. The bits that differ may still be equal values."""
    if held.device != wanted.device or held.dtype != wanted.dtype:
        return False
    kind = _BITS[held.element_size()]
    return torch.equal(held.view(kind), wanted.view(kind))


def _blocks(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Yield the bits of a tensor as flat blocks of whole rows on a device; equal values have equal bits.

    -0.0 becomes 0.0, as it does in a packed kernel. A row that is not finite becomes NaN as a whole, which is what
    applying a packed layer to the identity makes of it.
    """
    table = tensor.detach()
    table = table.reshape(1) if table.dim() == 0 else table
    row = max(1, table[0].numel()) if table.shape[0] else 1
    step = max(1, _BLOCK // row)
    for begin in range(0, table.shape[0], step):
        block = table[begin : begin + step].to(device, dtype).reshape(-1, row) + 0
        kind = _BITS[block.element_size()]
        if dtype.is_floating_point and block.element_size() > 1:
            block = block.masked_fill(~torch.isfinite(block).all(dim=1, keepdim=True), float("nan"))
        yield block.contiguous().reshape(-1).view(kind)


def checksum(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype) -> tuple[Any, ...]:
    """Return (shape, checksum) of a tensor's values as `dtype`: equal if, and for practical purposes only if, they are.

    Both sides of a comparison are computed on `device`, wherever the tensor is. On the CPU it is a hash of the bits. On
    a GPU it is two sums of the bits modulo 2**64, [2] int64, so that nothing is copied to the host or waits for it; the
    second sum has a weight for each position, so that it changes if values are exchanged or shifted.
    """
    blocks = _blocks(tensor, device, dtype)
    shape = tuple(tensor.shape)
    if device.type != "cpu":
        return shape, _sums(blocks, device)
    digest = xxhash.xxh3_128()
    for block in blocks:
        digest.update(block.numpy())
    return shape, digest.hexdigest()


def same_checksum(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Return True if two checksums are equal. Waits for the device if they are there."""
    if one[0] != other[0]:
        return False
    return one[1] == other[1] if isinstance(one[1], str) else bool(torch.equal(one[1], other[1]))


def _sums(blocks: Iterable[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return the sum and the weighted sum of blocks of bits, [2] int64, computed where they are."""
    total = torch.zeros((), dtype=torch.int64, device=device)
    weighted = torch.zeros((), dtype=torch.int64, device=device)
    begin = 0
    for whole in blocks:
        for bits in whole.split(_BLOCK):
            block = bits.to(torch.int64)
            position = torch.arange(begin, begin + block.numel(), dtype=torch.int64, device=device)
            weight = (2 * position + 1) * _HASH_WEIGHT
            weight ^= weight >> 29
            total += block.sum()
            weighted += (block * weight).sum()
            begin += block.numel()
    return torch.stack((total, weighted))
