"""Record when an engine had requests to decode, when it had none, and when it was paused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class BusyMeter:
    """Turns the begin and end of requests and pauses into busy intervals, in seconds since the epoch.

    Attributes:
        paused: True while the engine is paused.
        seconds: Seconds up to the last change by state: `busy`, `paused` (with or without requests), `idle`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._requests = 0
        self.paused = False
        self._since: float | None = None
        self._closed: list[tuple[float, float]] = []
        self.seconds = {"busy": 0.0, "paused": 0.0, "idle": 0.0}
        self._clock = clock
        self._counted_until = clock()

    def count(self) -> dict[str, float]:
        """Bring `seconds` up to now and return them."""
        if self.paused:
            state = "paused"
        elif self._requests:
            state = "busy"
        else:
            state = "idle"
        now = self._clock()
        self.seconds[state] += now - self._counted_until
        self._counted_until = now
        return self.seconds

    def enter(self) -> None:
        """Note that a request has begun."""
        self.count()
        self._requests += 1
        self._update()

    def leave(self) -> None:
        """Note that a request has ended."""
        self.count()
        self._requests -= 1
        self._update()

    def pause(self) -> None:
        """Note that the engine is paused: no request is decoded."""
        self.count()
        self.paused = True
        self._update()

    def resume(self) -> None:
        """Note that the engine is no longer paused."""
        self.count()
        self.paused = False
        self._update()

    def drain(self) -> list[tuple[float, float]]:
        """Return the intervals (start, end) since the last drain.

        An interval that is still open ends now, and its rest is part of the next drain.
        """
        if self._since is not None:
            now = time.time()
            self._closed.append((self._since, now))
            self._since = now
        closed, self._closed = self._closed, []
        return closed

    def _update(self) -> None:
        busy = self._requests > 0 and not self.paused
        if busy and self._since is None:
            self._since = time.time()
        elif not busy and self._since is not None:
            self._closed.append((self._since, time.time()))
            self._since = None


class IdleWithGroups:
    """The seconds in which an engine had no request although groups were under way.

    All of their responses then waited for something else: for an environment, a reward, or the proof of a push.
    """

    def __init__(self, idle_s: Callable[[], float]) -> None:
        """`idle_s`: returns the seconds in which the engine had no request, since it started."""
        self._idle_s = idle_s
        self._groups = 0
        self._idle_before = 0.0
        self._seconds = 0.0

    @contextmanager
    def group(self) -> Iterator[None]:
        """Count a group as under way inside the block."""
        if not self._groups:
            self._idle_before = self._idle_s()
        self._groups += 1
        try:
            yield
        finally:
            self._groups -= 1
            if not self._groups:
                self._seconds += self._idle_s() - self._idle_before

    @property
    def seconds(self) -> float:
        """The seconds so far."""
        return self._seconds + (self._idle_s() - self._idle_before if self._groups else 0.0)
