"""Time for which this process ran: a deadline must not pass while nobody could work.

A job is suspended by SIGSTOP (Slurm's gang scheduling and `scontrol suspend`), by a frozen cgroup (a paused container),
or with its whole virtual machine. The monotonic clock goes on in most of these cases. A deadline by that clock has
passed when the job goes on, before anybody had the chance to answer: groups would be closed with their short responses
only, and the watchdog would report a stall that never was.

    suspended_s()        seconds that this process did not run, noticed by a thread that wakes up twice a second
    awake_time()         the event loop's time without them
    wait_first(...)      asyncio.wait for the first of several futures, with a deadline in awake time
    awake_timeout(...)   asyncio.timeout in awake time
    lateness(...)        how much later than it asked for a timer woke its waiter

The thread sees every suspension, however short the wait that it interrupts. A waiter that wakes much later than it
asked for was suspended as well; that also works where there is no thread, on a virtual clock.
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
"""A thread that slept longer than this was suspended with its process. One that is scheduled late on a busy machine, or
waits for a library that holds the interpreter's lock, sleeps a second or two longer than it asked for."""
LATE_S = 5.0
"""The same for a waiter of an event loop."""
CLOCK_STEP_S = 1e-6
"""A deadline that has less than this left is over. A rounding error of its parts may be so small that adding it to the
clock changes nothing: a wait for it would end at once, for ever."""
SLICES = 8
"""A deadline is waited for in so many parts, so that of a suspension without a thread to notice it one part counts."""


class SuspensionMeter:
    """Counts the seconds in which nobody called `look`, which is meant to be called every TICK_S."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = clock()
        self._suspended_s = 0.0

    def look(self) -> float:
        """Return the seconds of all suspensions so far. Whoever comes first after one counts it."""
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
    """Return the seconds for which this process was suspended since it asked for the first time.

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
    return now - suspended_s()  # asked last: a suspension between the two calls must not count as awake


def lateness(began: float, asked_s: float) -> float:
    """Return by how many seconds a wait of `asked_s`, begun at the awake time `began`, lasted too long.

    0.0 where it ended earlier, or a little late, as on a busy machine.
    """
    late = awake_time() - began - asked_s
    return late if late > LATE_S else 0.0


async def wait_first(futures: Iterable[asyncio.Future[Any]], seconds: float) -> set[asyncio.Future[Any]]:
    """Wait until one of `futures` is done and return those that are; none after `seconds` of awake time."""
    waited = set(futures)
    left_s = seconds
    while True:
        part_s = min(left_s, seconds / SLICES)
        began = awake_time()
        done, _ = await asyncio.wait(waited, timeout=part_s, return_when=asyncio.FIRST_COMPLETED)
        if done:
            return done
        left_s -= min(awake_time() - began, part_s)
        if left_s <= CLOCK_STEP_S:
            return set()


@asynccontextmanager
async def awake_timeout(seconds: float) -> AsyncIterator[None]:
    """Cancel what is in the block after `seconds` of awake time. Raises TimeoutError, as asyncio.timeout does."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as timer:
        left_s = seconds
        part_s = began = 0.0
        handle: asyncio.TimerHandle | None = None

        def begin_part() -> None:
            nonlocal part_s, began, handle
            part_s = max(0.0, min(left_s, seconds / SLICES))
            began = awake_time()
            handle = loop.call_later(part_s, end_part)

        def end_part() -> None:
            nonlocal left_s
            left_s -= min(awake_time() - began, part_s)
            if left_s <= CLOCK_STEP_S:
                timer.reschedule(loop.time())
            else:
                begin_part()

        begin_part()
        try:
            yield
        finally:
            if handle is not None:
                handle.cancel()
