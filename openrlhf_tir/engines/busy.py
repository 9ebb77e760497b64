"""Record the intervals in which an engine was decoding at least one request."""

from __future__ import annotations

import time


class BusyMeter:
    """Turns the begin and end of requests and pauses into busy intervals, in seconds since the epoch."""

    def __init__(self) -> None:
        self._requests = 0
        self._paused = False
        self._since: float | None = None
        self._closed: list[tuple[float, float]] = []

    def enter(self) -> None:
        """Note that a request has begun."""
        self._requests += 1
        self._update()

    def leave(self) -> None:
        """Note that a request has ended."""
        self._requests -= 1
        self._update()

    def pause(self) -> None:
        """Note that the engine is paused: no request is decoded."""
        self._paused = True
        self._update()

    def resume(self) -> None:
        """Note that the engine is no longer paused."""
        self._paused = False
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
        busy = self._requests > 0 and not self._paused
        if busy and self._since is None:
            self._since = time.time()
        elif not busy and self._since is not None:
            self._closed.append((self._since, time.time()))
            self._since = None
