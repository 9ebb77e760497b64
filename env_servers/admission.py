"""Admission: at most `workers` executions at once, at most `max_queue` more waiting in order; beyond that the caller is
told when to return."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class CapacityFull(Exception):
    """The queue is full. `retry_after_s`: when to expect a place, in whole seconds (HTTP's Retry-After)."""

    def __init__(self, reason: str, retry_after_s: int) -> None:
        super().__init__(reason, retry_after_s)
        self.reason = reason
        self.retry_after_s = retry_after_s


class Place:
    """One execution's place."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def leave(self) -> None:
        """Gives the place to the next in the queue before the execution has ended: what remains of it waits for
        something else. The second time does nothing."""
        release = self._release
        self._release = None
        if release is not None:
            release()


class Admission:
    def __init__(self, workers: int, max_queue: int) -> None:
        if workers < 1 or max_queue < 0:
            raise ValueError(
                f"workers = {workers}, max_queue = {max_queue} admits nothing. Use workers >= 1 and max_queue >= 0."
            )
        self.workers = workers
        self.max_queue = max_queue
        self.running = 0
        self.waiting = 0
        self._slots = asyncio.Semaphore(workers)
        self._mean_s = 0.1  # running mean of how long a place is held; only feeds the Retry-After estimate

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[Place]:
        """Hold one execution place. Raises CapacityFull at once when the queue is full."""
        if self._slots.locked() and self.waiting >= self.max_queue:
            raise CapacityFull(f"{self.running} running and {self.waiting} waiting executions", self.retry_after_s)
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        start = time.monotonic()

        def release() -> None:
            self.running -= 1
            self._slots.release()
            self._mean_s += 0.05 * (time.monotonic() - start - self._mean_s)

        place = Place(release)
        try:
            yield place
        finally:
            place.leave()

    @property
    def retry_after_s(self) -> int:
        """Seconds until half of the queue is through, between 1 and 30."""
        return max(1, min(30, math.ceil(self._mean_s * self.max_queue / 2 / self.workers)))
