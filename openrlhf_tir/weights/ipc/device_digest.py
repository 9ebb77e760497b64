"""Compute the digest of a bucket where its bytes are, so that nothing but sixteen bytes comes to the host.

    sums   = sum of the buffer's 64-bit words, and the same weighted by position, both modulo 2**64
    digest = XXH3-128(names, dtypes, shapes, sums)

All weights are odd, so that a change within one word of eight bytes always changes the weighted sum. Words that are
exchanged or shifted change it too, because each has another weight. An accident that knows nothing of the weights keeps
both sums with a probability of about 2**-64, which is what any digest of 64 bits can promise. Like the digest of files
it finds accidents and no forgery.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache

import torch
import xxhash

BLOCK_WORDS = 1 << 21
"""Words that are weighted at a time; this limits the memory for it to 16 MiB, beside as much for the weights."""
MULTIPLIER = 6364136223846793005
"""Odd multiplier of the position weights (Knuth's MMIX generator)."""


@cache
def _weights(device: torch.device) -> torch.Tensor:
    """Return the weights of a block's words, [BLOCK_WORDS] int64, all odd."""
    position = torch.arange(BLOCK_WORDS, dtype=torch.int64, device=device)
    weight = (2 * position + 1) * MULTIPLIER
    return (weight ^ (weight >> 29)) | 1


def word_sums(buffer: torch.Tensor) -> torch.Tensor:
    """Return the sum and the weighted sum of a buffer's words, [2] int64 on its device. Nothing waits for the device.

    Args:
        buffer: [bytes] uint8, a multiple of 8 bytes that begin at such a multiple.
    """
    words = buffer.view(torch.int64)
    weights = _weights(words.device)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    weighted = torch.zeros((), dtype=torch.int64, device=words.device)
    for number, block in enumerate(words.split(BLOCK_WORDS)):
        total += block.sum()
        # Each block has an odd multiplier of its own, so that blocks which are exchanged show as well.
        weighted += (block * weights[: len(block)]).sum() * _block_multiplier(number)
    return torch.stack((total, weighted))


def _block_multiplier(number: int) -> int:
    """Return the odd multiplier of a block's weighted sum, as a signed 64-bit integer."""
    value = ((2 * number + 1) * 0x9E3779B97F4A7C15 | 1) % 2**64
    return value - 2**64 if value >= 2**63 else value


def bucket_digest(items: Iterable[tuple[str, str, Sequence[int]]], sums: Sequence[int]) -> str:
    """Return the digest of a bucket.

    Args:
        items: (name, safetensors dtype, shape) of each tensor.
        sums: The sums of its buffer (`word_sums`), as numbers.
    """
    names = [[name, dtype, list(shape)] for name, dtype, shape in items]
    return xxhash.xxh3_128_hexdigest(json.dumps([names, [int(value) for value in sums]]).encode())
