"""Limit how many executions run at once, and how many wait.

At most `workers` executions run and at most `max_queue` more wait, in order of arrival. A caller beyond that is refused
with the time after which to try again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class CapacityFull(Exception):
    """Raised when the queue is full.

    Attributes:
        reason: What fills the server.
        retry_after_s: Whole seconds after which a slot is expected to be free (HTTP's Retry-After).
    """

    def __init__(self, reason: str, retry_after_s: int) -> None:
        super().__init__(reason, retry_after_s)
        self.reason = reason
        self.retry_after_s = retry_after_s


class ExecutionSlot:
    """One of the `workers` executions that may run at once, held by a step."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Give the slot to the next execution in the queue. Later calls do nothing.

        A step may call it before it ends, when what remains of it runs elsewhere or only waits.
        """
        release = self._release
        self._release = None
        if release is not None:
            release()


class Admission:
    """Hands out execution slots to the requests of one server.

    Attributes:
        running: Number of executions that hold a slot.
        waiting: Number of executions that wait for one.
    """

    def __init__(self, workers: int, max_queue: int) -> None:
        """Create an admission with all slots free.

        Args:
            workers: Executions at once.
            max_queue: Executions that may wait.

        Raises:
            ValueError: The numbers admit nothing.
        """
        if workers < 1 or max_queue < 0:
            raise ValueError(
                f"workers = {workers}, max_queue = {max_queue} admits nothing. Use workers >= 1 and max_queue >= 0."
            )
        self.workers = workers
        self.max_queue = max_queue
        self.running = 0
        self.waiting = 0
        self._slots = asyncio.Semaphore(workers)
        self._mean_s = 0.1
        """Moving average of the seconds for which a slot is held. It only feeds the estimate for Retry-After."""

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[ExecutionSlot]:
        """Hold an execution slot for the duration of the block.

        Raises:
            CapacityFull: The queue is full. Raised at once, without waiting.
        """
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

        slot = ExecutionSlot(release)
        try:
            yield slot
        finally:
            slot.release()

    @property
    def retry_after_s(self) -> int:
        """Return the estimated seconds until half of the queue has run, between 1 and 30."""
        return max(1, min(30, math.ceil(self._mean_s * self.max_queue / 2 / self.workers)))
