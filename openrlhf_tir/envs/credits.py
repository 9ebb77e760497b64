"""Credits: how many calls this process may have in flight at one environment server. The server owns the capacity; we
find our share.

The window grows by one with every answer until the server refuses (429, outcome capacity or timeout); then it halves,
and grows by one per round: additive increase, multiplicative decrease (Chiu & Jain, 1989), so that actors which share a
server without knowing of each other converge to equal shares of it. Answers clock the calls: a refused one goes again
when the smaller window has room, which is when others of ours were answered. Only with none in flight is Retry-After
waited for, longer with every refusal in a row (refusals.py). Waiting callers go in order.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque

from .refusals import Refusals

START = 16.0


class Credits:
    def __init__(self, most: int) -> None:
        """`most`: the local cap, whatever the server would take."""
        self.most, self.window, self.in_flight = most, min(float(most), START), 0
        self._refusals = Refusals()
        self._not_before = float("-inf")
        self._queue: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def acquire(self, timeout_s: float) -> None:
        """Raises TimeoutError when no credit came free in time."""
        loop = asyncio.get_running_loop()
        if not self._queue and self._free(loop.time()):
            self.in_flight += 1
            return
        ticket = loop.create_future()
        self._queue.append(ticket)
        self._wake()
        try:
            async with asyncio.timeout(timeout_s):
                await ticket
        except BaseException:
            if ticket.done() and not ticket.cancelled():
                self.release()  # granted and given up in the same turn of the loop
            elif ticket in self._queue:
                self._queue.remove(ticket)
            raise

    def release(self) -> None:
        self.in_flight -= 1
        self._wake()

    def answered(self) -> None:
        """The server took a call: it has room."""
        self._not_before = float("-inf")
        slow_start = self._refusals.last == float("-inf")
        self._refusals.taken()
        self.window = min(self.most, self.window + (1 if slow_start else 1 / self.window))
        self._wake()

    def refused(self, sent_at: float, after_s: float = 0.0) -> None:
        """The server had no room for the call sent at `sent_at` (loop time), and says to come again after `after_s`."""
        now = asyncio.get_running_loop().time()
        if self._refusals.refused(sent_at, now):
            self.window = max(1.0, min(self.window, self.in_flight) / 2)
        # Jitter, so that actors which were refused together do not come back together.
        self._not_before = max(self._not_before, now + self._refusals.pause_s(after_s) * random.uniform(1.0, 1.5))

    def _free(self, now: float) -> bool:
        return self.in_flight < int(self.window) and (self.in_flight > 0 or now >= self._not_before)

    def _wake(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue and self._free(loop.time()):
            ticket = self._queue.popleft()
            if not ticket.done():
                self.in_flight += 1
                ticket.set_result(None)
        if self._queue and not self.in_flight and self._timer is None:
            self._timer = loop.call_at(self._not_before, self._rested)

    def _rested(self) -> None:
        self._timer = None
        self._wake()
