"""Host memory of a learner rank: what DeepSpeed's buffers may take, and what glibc's allocator may keep.

DeepSpeed's defaults are sized for GPUs and large models: the optimiser steps on 1e9 elements at a time, for which it
holds a flat copy of the gradients and torch's AdamW two arrays more, and gradients are gathered in buckets of 5e8. With
135 million parameters that is one copy after another of the whole model in fp32. Smaller pieces change no result: Adam
is elementwise, and a bucket is only a unit of communication.

glibc keeps freed memory for later, and gives back only what lies at the end of its heap. Of a forward and backward
pass it keeps 1.5 GB with SmolLM2 (1,280 tokens), on top of which the optimiser's step then takes its own: that was most
of what a rank took beyond a plain loop, and what looked like growth.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from typing import Any

SUB_GROUP_ELEMENTS = 2**25
"""Elements per rank that one step of the optimiser is taken on: 128 MiB in fp32. A larger parameter is alone."""
BUCKET_ELEMENTS = {"cpu": 2**23, "cuda": 2**26}
"""Elements of gradients that are added up over the ranks at a time, by device. A larger parameter is alone, without a
buffer."""

log = logging.getLogger(__name__)


def bounded(zero_optimization: dict[str, Any], device: str, *, sub_groups: bool = True) -> None:
    """Set the sizes of DeepSpeed's pieces in its configuration's section `zero_optimization`.

    Args:
        device: "cpu" or "cuda", with or without an index.
        sub_groups: Whether the optimiser may step on the model in pieces.
    """
    kind = device.partition(":")[0]
    zero_optimization["reduce_bucket_size"] = BUCKET_ELEMENTS[kind]
    # gloo computes a reduce-scatter as an all-reduce. Asked for the latter, DeepSpeed adds a bucket up in place instead
    # of in two copies of it.
    zero_optimization["reduce_scatter"] = kind != "cpu"
    if sub_groups:
        zero_optimization["sub_group_size"] = SUB_GROUP_ELEMENTS


@functools.cache
def _malloc_trim() -> Any:
    """glibc's function; None with another C library."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except AttributeError:
        log.info("this C library has no malloc_trim: a rank keeps freed memory")
        return None


def give_back_freed() -> None:
    """Give freed memory back to the system.

    Called before and after the optimiser's step, not between micro batches, which use the same memory again.
    """
    if (trim := _malloc_trim()) is not None:
        trim(0)
