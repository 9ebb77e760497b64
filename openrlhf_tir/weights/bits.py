"""Compare two tensors exactly: element by element, or by checksums of one side.

Equal means that the bits are, with two exceptions, which packed layers need (packed_columns.py): -0.0 equals 0.0, and
a row with a value that is not finite equals every other such row.

    has_equal_values, differs_on_device    both tensors are there
    checksum                               one of them is not kept
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

import torch
import xxhash

MAX_BLOCK_ELEMENTS = 1 << 22
"""Most elements that are compared at a time, unless a row is longer. Limits the memory for it."""
BLOCK_WORDS = 1 << 21
"""Words that are weighted at a time; this limits the memory for it to 16 MiB, beside as much for the weights."""
_MULTIPLIER = 6364136223846793005
"""Odd multiplier of the position weights (Knuth's MMIX generator)."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of a value -> integers of the same size, as which its bits are compared."""

Checksum = tuple[tuple[int, ...], torch.Tensor]
"""Shape of a tensor, and a checksum of its values, [2] int64: on a CPU a hash, on a GPU sums."""


def has_equal_values(held: torch.Tensor, sent: torch.Tensor) -> bool:
    """Return True if a model's tensor holds the values of the one sent, in the dtype of the model's.

    Args:
        held: The model's tensor.
        sent: The tensor that was sent, of the same shape.
    """
    # Equal bits are equal values, and on a CPU they are seen in a fraction of the time that the blocks take.
    if held.device.type == "cpu" and _has_equal_bits(held, sent):
        return True
    held_blocks = blocks(held, held.device, held.dtype)
    sent_blocks = blocks(sent, held.device, held.dtype)
    return all(torch.equal(*pair) for pair in zip(held_blocks, sent_blocks, strict=True))


def _has_equal_bits(held: torch.Tensor, sent: torch.Tensor) -> bool:
    if held.device != sent.device or held.dtype != sent.dtype:
        return False
    integers = _INTEGERS[held.element_size()]
    return torch.equal(held.view(integers), sent.view(integers))


def differs_on_device(held: torch.Tensor, sent: torch.Tensor) -> torch.Tensor | None:
    """Return a bool on the tensors' device, True if any bit differs. Does not wait for the device.

    Bits that differ may still be equal values, which only `has_equal_values` knows.

    Returns:
        A scalar; None if the tensors are not of one device, dtype and shape.
    """
    if held.device != sent.device or held.dtype != sent.dtype or held.shape != sent.shape:
        return None
    integers = _INTEGERS[held.element_size()]
    return (held.view(integers) != sent.view(integers)).any()


def checksum(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype) -> Checksum:
    """Return the shape and a checksum of a tensor's values as `dtype`.

    Two checksums are equal if, and for practical purposes only if, the values are. Both sides of a comparison are
    computed on `device`, wherever the tensor is. On a GPU nothing is copied to the host, and nothing waits for it.
    """
    bits = blocks(tensor, device, dtype)
    shape = tuple(tensor.shape)
    if device.type != "cpu":
        return shape, position_sums(bits, device)
    digest = xxhash.xxh3_128()
    for block in bits:
        digest.update(block.numpy())
    return shape, torch.frombuffer(bytearray(digest.digest()), dtype=torch.int64)


def blocks(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Yield the bits of a tensor's values as `dtype`, as flat blocks [n] of whole rows on `device`.

    Values that count as equal (see the module's docstring) have equal bits here.
    """
    table = tensor.detach()
    if table.dim() == 0:
        table = table.reshape(1)
    row_elements = max(1, table[0].numel()) if table.shape[0] else 1
    rows_of_block = max(1, MAX_BLOCK_ELEMENTS // row_elements)
    for begin in range(0, table.shape[0], rows_of_block):
        block = table[begin : begin + rows_of_block].to(device, dtype).reshape(-1, row_elements)
        block = block + 0  # makes 0.0 of -0.0, as a packed kernel does
        # A packed layer is read by applying it to the identity, which makes NaN of a row that is not finite. Types of
        # one byte are left out: torch has no isfinite for some of them.
        if dtype.is_floating_point and block.element_size() > 1:
            block = block.masked_fill(~torch.isfinite(block).all(dim=1, keepdim=True), float("nan"))
        yield block.contiguous().reshape(-1).view(_INTEGERS[block.element_size()])


def position_sums(words: Iterable[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return the sum of integers and the same weighted by position, both modulo 2**64, [2] int64 on their device.

    Nothing waits for the device. All weights are odd, so that a change within one integer of eight bytes always changes
    the weighted sum. Integers that are exchanged or shifted change it too, because each has another weight.

    Args:
        words: Flat tensors of integers. What is compared must be cut in the same way.
        device: Where they are.
    """
    weights = _weights(device)
    total = torch.zeros((), dtype=torch.int64, device=device)
    weighted = torch.zeros((), dtype=torch.int64, device=device)
    parts = (part for tensor in words for part in tensor.split(BLOCK_WORDS))
    for number, part in enumerate(parts):
        values = part.to(torch.int64)
        total += values.sum()
        # Each part has an odd multiplier of its own, so that parts which are exchanged show as well.
        weighted += (values * weights[: len(values)]).sum() * _part_multiplier(number)
    return torch.stack((total, weighted))


@cache
def _weights(device: torch.device) -> torch.Tensor:
    """Return the weights of a part's integers, [BLOCK_WORDS] int64, all odd."""
    position = torch.arange(BLOCK_WORDS, dtype=torch.int64, device=device)
    weight = (2 * position + 1) * _MULTIPLIER
    # Not linear in the position any more: differences that cancel in a linear sum do not in this one.
    return (weight ^ (weight >> 29)) | 1


def _part_multiplier(number: int) -> int:
    """Return the odd multiplier of a part's weighted sum, as a signed 64-bit integer."""
    value = ((2 * number + 1) * 0x9E3779B97F4A7C15 | 1) % 2**64
    return value - 2**64 if value >= 2**63 else value
