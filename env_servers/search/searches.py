"""Run searches in worker threads that can be stopped: a cancelled search frees its worker too.

    job(stop) in a thread; cancelled -> `stop()` is true -> the job sees it at its next check (between queries, and
    within a long one) -> the caller's slot is free again

A job that does not check keeps its slot until it ends, as it keeps a core: the number of free slots is always true.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
Stop = Callable[[], bool]
"""Returns True if nobody waits for the result any more."""


class Stopped(Exception):
    """Raised by a job that was stopped. Its caller has left already."""


def never() -> bool:
    """A `Stop` of a search that nobody cancels."""
    return False


class Searches:
    """The worker threads of one server."""

    def __init__(self, workers: int) -> None:
        """Create `workers` threads, as many as the server has execution slots."""
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="search")

    async def run(self, job: Callable[[Stop], T]) -> T:
        """Run a job in a thread. If the caller is cancelled, even repeatedly, it is released when the job has ended."""
        stop_requested = threading.Event()
        result = asyncio.get_running_loop().run_in_executor(self._pool, job, stop_requested.is_set)
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:
            stop_requested.set()
            while not result.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([result])
            result.exception()  # retrieved, so that asyncio does not log it
            raise

    async def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
