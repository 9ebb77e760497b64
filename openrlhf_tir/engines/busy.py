"""Busy: when was at least one request decoding? enter/leave/pause/resume -> list of (start, end) in epoch seconds."""

from __future__ import annotations

import time
from collections.abc import Callable


class BusyMeter:
    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._requests = 0
        self._paused = False
        self._since: float | None = None
        self._closed: list[tuple[float, float]] = []

    def enter(self) -> None:
        self._requests += 1
        self._update()

    def leave(self) -> None:
        self._requests -= 1
        self._update()

    def pause(self) -> None:
        self._paused = True
        self._update()

    def resume(self) -> None:
        self._paused = False
        self._update()

    def drain(self) -> list[tuple[float, float]]:
        """Intervals since the last drain. One that is still open is cut at now and goes on from there."""
        if self._since is not None:
            now = self._clock()
            self._closed.append((self._since, now))
            self._since = now
        closed, self._closed = self._closed, []
        return closed

    def _update(self) -> None:
        busy = self._requests > 0 and not self._paused
        if busy and self._since is None:
            self._since = self._clock()
        elif not busy and self._since is not None:
            self._closed.append((self._since, self._clock()))
            self._since = None
