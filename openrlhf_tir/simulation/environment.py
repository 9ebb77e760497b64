"""The environment servers of a simulation: each call takes its scripted latency, and `capacity` calls run at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from .engine_model import Clock


class EnvModel:
    """All environment servers together.

    Calls beyond the capacity wait; a full server is no failure (429). In an outage no call starts, and a call that has
    waited for `patience_s` during one fails.
    """

    def __init__(self, capacity: int, clock: Clock, *, patience_s: float) -> None:
        self.capacity = capacity
        self.clock = clock
        self.patience_s = patience_s
        self.running = 0
        """Number of calls that run."""
        self.down = False
        """True in an outage."""
        self._waiting: deque[tuple[float, float, Callable[[bool], object]]] = deque()
        """(time at which it fails in an outage, latency, callback) of each waiting call, in order of arrival."""

    def call(self, latency_s: float, on_done: Callable[[bool], object]) -> None:
        """Make a call of `latency_s`. `on_done` is called with True at its end, with False if it was not served."""
        if self.running < self.capacity and not self.down:
            self._start(latency_s, on_done)
            return
        deadline = self.clock.time() + self.patience_s
        self._waiting.append((deadline, latency_s, on_done))
        if self.down:
            self.clock.call_at(deadline, self._give_up)

    def outage(self, down: bool) -> None:
        """Begin or end an outage. Calls that are waiting when one begins have the whole patience left."""
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
        """Start waiting calls while there is room."""
        while self._waiting and self.running < self.capacity and not self.down:
            _, latency_s, on_done = self._waiting.popleft()
            self._start(latency_s, on_done)

    def _give_up(self) -> None:
        """Fail the calls whose patience is over."""
        while self.down and self._waiting and self._waiting[0][0] <= self.clock.time():
            _, _, on_done = self._waiting.popleft()
            on_done(False)
