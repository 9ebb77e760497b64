"""Compute the digest of a bucket where its bytes are, so that nothing but sixteen bytes comes to the host.

    sums   = position_sums of the buffer's 64-bit words (weights/bits.py)
    digest = XXH3-128(names, dtypes, shapes, sums)

An accident that knows nothing of the weights keeps both sums with a probability of about 2**-64, which is what any
digest of 64 bits can promise. Like the digest of files it finds accidents and no forgery.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import torch
import xxhash

from ...pushes import Item
from ..bits import position_sums


def word_sums(buffer: torch.Tensor) -> torch.Tensor:
    """Return the sum and the weighted sum of a buffer's words, [2] int64 on its device. Nothing waits for the device.

    Args:
        buffer: [bytes] uint8, a multiple of 8 bytes that begin at such a multiple.
    """
    return position_sums([buffer.view(torch.int64)], buffer.device)


def bucket_digest(items: Iterable[Item], sums: Sequence[int]) -> str:
    """Return the digest of a bucket.

    Args:
        items: Its tensors.
        sums: The sums of its buffer (`word_sums`), as numbers.
    """
    return xxhash.xxh3_128_hexdigest(json.dumps([list(items), [int(value) for value in sums]]).encode())
