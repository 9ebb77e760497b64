"""Bring the bytes of tensors to the host: without a copy where they are, by page-locked memory from a GPU.

A plain `.cpu()` copies through a small buffer of the driver, page by page, at a fraction of the bus's speed, and waits
for every tensor. Here all tensors of a bucket are copied into one page-locked buffer, and the host waits once. torch
keeps such buffers, so that the next bucket costs no allocation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

ALIGNMENT = 16
"""Tensors begin at multiples of this many bytes in a buffer, which suits every dtype."""


def aligned(nbytes: int) -> int:
    """Return the next multiple of ALIGNMENT: where the tensor after one of `nbytes` bytes begins."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def host_bytes(tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """Return the bytes of each tensor in C order, [bytes] uint8.

    The array of a contiguous CPU tensor shares its memory. Those of CUDA tensors share a buffer that lives as long as
    one of them.
    """
    flat = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
    size = sum(aligned(part.numel()) for part in flat if part.is_cuda)
    if not size:
        return [part.numpy() for part in flat]
    buffer = _page_locked(size)
    arrays: list[np.ndarray] = []
    begin = 0
    for part in flat:
        if not part.is_cuda:
            arrays.append(part.numpy())
            continue
        target = buffer[begin : begin + part.numel()]
        target.copy_(part, non_blocking=True)
        begin += aligned(part.numel())
        arrays.append(target.numpy())
    torch.cuda.synchronize(next(part.device for part in flat if part.is_cuda))
    return arrays


def _page_locked(size: int) -> torch.Tensor:
    """Return a page-locked buffer, or a plain one where the system locks no more pages."""
    try:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    except RuntimeError:
        return torch.empty(size, dtype=torch.uint8)
