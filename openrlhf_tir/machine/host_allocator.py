"""glibc's memory allocator in the processes of a run on CPU: how little of what is freed it keeps.

glibc gives every thread an arena of its own, which consists of heaps of 64 MiB. Learner and engine work in a thread of
a Ray actor, not in the process's first one. A tensor of 25 MiB, such as the logits of 128 sequences of SmolLM2, leaves
room beside it that no other fits into, heap by heap. With one arena for all threads there is a single heap that grows
and shrinks at its end (ONE_ARENA).

What is freed inside of the heap stays with the process until `give_back_freed`.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from typing import Any

ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}
"""Environment variables of a process that computes on a CPU. They work from the process's start only."""

log = logging.getLogger(__name__)


@functools.cache
def _malloc_trim() -> Any:
    """Return glibc's `malloc_trim`; None with another C library."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except AttributeError:
        log.info("This C library has no malloc_trim, so freed memory is kept.")
        return None


def give_back_freed() -> None:
    """Return freed memory to the system, in some .02 s a gigabyte. What is needed again is then cleared anew."""
    if (trim := _malloc_trim()) is not None:
        trim(0)
