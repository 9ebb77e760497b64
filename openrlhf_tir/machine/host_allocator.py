"""glibc's memory allocator in the processes of a run on CPU: give back to the system what it keeps after `free`."""

from __future__ import annotations

import ctypes
import functools
import logging
from typing import Any

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
    """Return freed memory to the system. Call it before and after the optimizer's step."""
    if (trim := _malloc_trim()) is not None:
        trim(0)
