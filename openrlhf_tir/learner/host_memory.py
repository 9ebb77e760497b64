"""Limit the host memory of a learner rank: DeepSpeed's buffers, and what glibc's allocator keeps after `free`.

DeepSpeed's defaults suit GPUs and large models. Its optimizer updates up to 1e9 elements at once, for which it keeps a
flat copy of the gradients and torch's AdamW two more arrays, and it reduces gradients in buckets of 5e8. For a model of
135 million parameters each of these is a copy of the whole model in fp32. Smaller pieces do not change the result: Adam
is elementwise, and a bucket is only a unit of communication.

glibc returns only the end of its heap to the system and keeps other freed memory for later. After a forward and
backward pass of SmolLM2 (1,280 tokens) it keeps 1.5 GB, and the optimizer's step needs its own memory on top. That was
most of what a rank used beyond a plain training loop, and it looked like a leak.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from ..machine.host_allocator import give_back_freed
from ..memory.bounds import GRADIENT_BUCKET_ELEMENTS

SUB_GROUP_ELEMENTS = 2**25
"""Elements per rank that the optimizer updates at once, 128 MiB in fp32; more by the rest of the parameter that reaches
them."""
REST_PER_TRIM = 137
"""A `Trimmer` rests for this many times the duration of a trim. A trim takes some .02 s, and to touch the returned
pages again .2 s: with 137 = (.02 + .2) / .02 / .08 both take at most 8 % of the time."""


def limit_buffers(zero_optimization: dict[str, Any], device: str, *, whole_gradients: bool) -> None:
    """Set the sizes of DeepSpeed's buffers in its configuration section `zero_optimization`, in place.

    Args:
        zero_optimization: The section of DeepSpeed's configuration.
        device: "cpu" or "cuda", with or without an index.
        whole_gradients: True if the optimizer needs the whole gradient of a matrix on every rank, as Muon does.
    """
    kind = device.partition(":")[0]
    zero_optimization["reduce_bucket_size"] = GRADIENT_BUCKET_ELEMENTS[kind]
    # gloo implements a reduce-scatter as an all-reduce. If DeepSpeed calls all-reduce itself, it reduces a bucket in
    # place rather than in two copies.
    zero_optimization["reduce_scatter"] = kind != "cpu" and not whole_gradients
    if not whole_gradients:
        zero_optimization["sub_group_size"] = SUB_GROUP_ELEMENTS


class Trimmer:
    """Returns freed memory to the system where a rank is near its peak, as often as that costs little.

    glibc keeps freed blocks that are too small for the next activations: .4 GB at the peak of SmolLM2 (1,280 tokens).
    Its micro batches take four seconds, so that a trim comes before each. With micro batches of milliseconds most are
    left out, and there is little to return.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        """`clock`: seconds; CPU time, so that a trim which a busy machine interrupts is not taken for a long one."""
        self._clock = clock
        self._rests_until = -math.inf

    def trim(self) -> bool:
        """Return freed memory to the system, unless the last trim was less than REST_PER_TRIM times its own duration
        ago.

        Returns:
            True if it did.
        """
        start = self._clock()
        if start < self._rests_until:
            return False
        give_back_freed()
        end = self._clock()
        self._rests_until = end + REST_PER_TRIM * (end - start)
        return True
