"""The environment servers of a simulation: calls take their scripted latency, `capacity` at once; the rest wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from .engine_model import Clock


class EnvModel:
    """A full server only makes calls wait (429 is no failure). In an outage no call starts, and one that meets
    `patience_s` of it fails."""

    def __init__(self, capacity: int, clock: Clock, *, patience_s: float) -> None:
        self.capacity, self.clock, self.patience_s = capacity, clock, patience_s
        self.running = 0
        self.down = False
        self._waiting: deque[tuple[float, float, Callable[[bool], object]]] = deque()

    def call(self, latency_s: float, on_done: Callable[[bool], object]) -> None:
        """`on_done(True)` after the call, `on_done(False)` when it was not served in time."""
        if self.running < self.capacity and not self.down:
            self._start(latency_s, on_done)
            return
        deadline = self.clock.time() + self.patience_s
        self._waiting.append((deadline, latency_s, on_done))
        if self.down:
            self.clock.call_at(deadline, self._give_up)

    def outage(self, down: bool) -> None:
        self.down = down
        if down and self._waiting:
            deadline = self.clock.time() + self.patience_s
            self._waiting = deque((deadline, latency_s, on_done) for _, latency_s, on_done in self._waiting)
            self.clock.call_at(deadline, self._give_up)
        self._serve()

    def _start(self, latency_s: float, on_done: Callable[[bool], object]) -> None:
        self.running += 1
        self.clock.call_at(self.clock.time() + latency_s, self._end, on_done)

    def _end(self, on_done: Callable[[bool], object]) -> None:
        self.running -= 1
        self._serve()
        on_done(True)

    def _serve(self) -> None:
        while self._waiting and self.running < self.capacity and not self.down:
            _, latency_s, on_done = self._waiting.popleft()
            self._start(latency_s, on_done)

    def _give_up(self) -> None:
        while self.down and self._waiting and self._waiting[0][0] <= self.clock.time():
            _, _, on_done = self._waiting.popleft()
            on_done(False)
