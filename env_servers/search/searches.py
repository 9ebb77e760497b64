"""Searches: retrieval in worker threads that can be told to stop. Whoever gives a search up gets its worker back, not
only the answer.

    job(stop) in a thread; cancelled -> `stop` is set -> the job sees it at its next look (between queries, and within a
    long one) -> the caller's place is free again

A job that does not look keeps its place until it ends, as it keeps a core: places tell the truth.
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
"""Whether nobody waits for the result any more."""


class Stopped(Exception):
    """The search was given up; its caller has left already."""


def never() -> bool:
    return False


class Searches:
    def __init__(self, workers: int) -> None:
        """`workers` threads; as many as the server has places."""
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="search")

    async def run(self, job: Callable[[Stop], T]) -> T:
        """Cancelled: raises when the job has ended, however often and impatiently it is cancelled."""
        given_up = threading.Event()
        ended = asyncio.get_running_loop().run_in_executor(self._pool, job, given_up.is_set)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            given_up.set()
            while not ended.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([ended])
            ended.exception()  # seen
            raise

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
