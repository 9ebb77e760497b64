"""Credits: how many calls this process may have in flight at one environment server.

The server owns its capacity; this process finds its share of it. The window grows by one with every answer until the
server refuses a call (429, outcome capacity or timeout). Then it halves, and grows by one per round of answers. With
this additive increase and multiplicative decrease (Chiu & Jain, 1989), actors that share a server without knowing of
each other converge to equal shares.

A refused call goes again when the smaller window has room, which is when other calls were answered. Only with no call
in flight is Retry-After waited for, longer with every refusal in a row (refusals.py). Waiting callers go in order.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque

from .refusals import Refusals

FIRST_WINDOW = 16.0


class Credits:
    """The credits of one server.

    Attributes:
        max_calls: Largest window.
        window: Calls that may be in flight now; a fraction counts down.
        in_flight: Calls in flight.
    """

    def __init__(self, max_calls: int) -> None:
        """Begin with a small window."""
        self.max_calls = max_calls
        self.window = min(float(max_calls), FIRST_WINDOW)
        self.in_flight = 0
        self._refusals = Refusals()
        self._not_before = float("-inf")
        """Event loop time in seconds before which no call is sent while none is in flight."""
        self._queue: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Number of callers that wait for a credit."""
        return len(self._queue)

    async def acquire(self, timeout_s: float) -> None:
        """Wait for a credit.

        Raises:
            TimeoutError: None came free within `timeout_s`.
        """
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
                self.release()  # granted and cancelled in the same iteration of the event loop
            elif ticket in self._queue:
                self._queue.remove(ticket)
            raise

    def release(self) -> None:
        """Give a credit back."""
        self.in_flight -= 1
        self._wake()

    def answered(self) -> None:
        """Record that the server took a call, and grow the window."""
        self._not_before = float("-inf")
        was_never_refused = self._refusals.last == float("-inf")
        self._refusals.taken()
        self.window = min(self.max_calls, self.window + (1 if was_never_refused else 1 / self.window))
        self._wake()

    def refused(self, sent_at: float, after_s: float = 0.0) -> None:
        """Record that the server had no room for a call, and shrink the window.

        Args:
            sent_at: Event loop time at which the call was sent, in seconds.
            after_s: Seconds after which the server says that it may have room.
        """
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
            self._timer = loop.call_at(self._not_before, self._pause_ended)

    def _pause_ended(self) -> None:
        self._timer = None
        self._wake()
