"""The time for which this process ran. A deadline must not pass while the process was suspended.

A job is suspended by SIGSTOP (Slurm's gang scheduling and `scontrol suspend`), by a frozen cgroup (a paused container),
or with its whole virtual machine. The monotonic clock runs on in most of these cases, so a deadline by that clock has
passed when the job continues, before anything could answer: groups would be closed with only their short responses, and
the watchdog would report a stall that did not happen.

    suspended_s()        seconds for which this process did not run, noticed by a thread that wakes up twice a second
    awake_time()         the event loop's time without them
    wait_first(...)      asyncio.wait for the first of several futures, with a deadline in awake time
    awake_timeout(...)   asyncio.timeout in awake time
    lateness(...)        how much later than requested a timer woke its waiter

The thread sees every suspension, however short the wait that it interrupts. A waiter that wakes much later than it
should was suspended as well; that also works without a thread, on a virtual clock.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

TICK_S = 0.5
MAX_GAP_S = 5.0
"""A thread that slept longer than this was suspended with its process. On a busy machine, or while a library holds the
interpreter's lock, it sleeps a second or two longer than it should."""
LATE_S = 5.0
"""The same for a waiter of an event loop."""
CLOCK_STEP_S = 1e-6
"""A deadline with less time left than this has passed. A smaller rest, left by rounding errors of the parts, may not
change the clock when it is added to it, so waiting for it would never end."""
SLICES = 8
"""Number of parts in which a deadline is waited for. Without a thread that notices a suspension, only one part of the
deadline can pass in it."""


class SuspensionMeter:
    """Counts the seconds in which nothing called `look`, which must be called every TICK_S."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = clock()
        self._suspended_s = 0.0

    def look(self) -> float:
        """Return the seconds of all suspensions so far. The first call after a suspension counts it."""
        with self._lock:
            now = self._clock()
            gap = now - self._last
            if gap > MAX_GAP_S:
                self._suspended_s += gap - TICK_S
            self._last = now
            return self._suspended_s


_meter: SuspensionMeter | None = None
_starting = threading.Lock()


def suspended_s() -> float:
    """Return the seconds for which this process was suspended since the first call of this function.

    An event loop whose clock is not the machine's (simulation/virtual_loop.py) has an attribute of this name.
    """
    try:
        virtual: float | None = getattr(asyncio.get_running_loop(), "suspended_s", None)
    except RuntimeError:  # called outside of a loop
        virtual = None
    if virtual is not None:
        return virtual
    global _meter
    with _starting:
        if _meter is None:
            _meter = SuspensionMeter()
            threading.Thread(target=_keep_looking, args=(_meter,), name="suspension", daemon=True).start()
    return _meter.look()


def _keep_looking(meter: SuspensionMeter) -> None:
    while True:
        time.sleep(TICK_S)
        meter.look()


def awake_time() -> float:
    """Return the running event loop's time in seconds, without suspensions of this process."""
    now = asyncio.get_running_loop().time()
    return now - suspended_s()  # called last: a suspension between the two calls must not count as awake


def lateness(began: float, requested_s: float) -> float:
    """Return by how many seconds a wait lasted too long; 0.0 if it ended early or a little late (a busy machine).

    Args:
        began: Awake time at which the wait began.
        requested_s: Its intended duration in seconds.
    """
    late_s = awake_time() - began - requested_s
    return late_s if late_s > LATE_S else 0.0


async def wait_first(futures: Iterable[asyncio.Future[Any]], seconds: float) -> set[asyncio.Future[Any]]:
    """Wait until one of `futures` is done and return all that are done.

    Args:
        futures: What to wait for.
        seconds: Awake time after which an empty set is returned.
    """
    pending = set(futures)
    remaining_s = seconds
    while True:
        part_s = min(remaining_s, seconds / SLICES)
        began = awake_time()
        done, _ = await asyncio.wait(pending, timeout=part_s, return_when=asyncio.FIRST_COMPLETED)
        if done:
            return done
        # A part counts at most in full: what it took beyond was a suspension.
        remaining_s -= min(awake_time() - began, part_s)
        if remaining_s <= CLOCK_STEP_S:
            return set()


@asynccontextmanager
async def awake_timeout(seconds: float) -> AsyncIterator[None]:
    """Cancel the block after `seconds` of awake time.

    Raises:
        TimeoutError: The block was cancelled, as with asyncio.timeout.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as timer:
        remaining_s = seconds
        part_s = 0.0
        began = 0.0
        handle: asyncio.TimerHandle | None = None

        def begin_part() -> None:
            nonlocal part_s, began, handle
            part_s = max(0.0, min(remaining_s, seconds / SLICES))
            began = awake_time()
            handle = loop.call_later(part_s, end_part)

        def end_part() -> None:
            nonlocal remaining_s
            remaining_s -= min(awake_time() - began, part_s)
            if remaining_s <= CLOCK_STEP_S:
                timer.reschedule(loop.time())
            else:
                begin_part()

        begin_part()
        try:
            yield
        finally:
            if handle is not None:
                handle.cancel()
