"""Progress: does an engine that has work do any? A process that answers and a GPU that hangs look alike outside."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..deadlines import Deadline
from ..errors import EngineError

MIN_LOOKS = 3
"""Looks in a row that must find nothing done: after the whole process was stopped the first one finds the time over and
the work untouched."""


class Progress:
    """`check` is called at every heartbeat."""

    def __init__(self, patience: Deadline, clock: Callable[[], float] = time.monotonic) -> None:
        self.patience, self._clock = patience, clock
        self._done: int | None = None
        self._since, self._looks = 0.0, 0

    def check(self, done: int, *, busy: bool) -> None:
        """`done` counts tokens since the engine started; `busy`: it has requests and is not paused.

        Raises EngineError when it was busy for longer than `patience` and nothing was done.
        """
        now = self._clock()
        if not busy or done != self._done:
            self._done, self._since, self._looks = done, now, 0
            return
        self._looks += 1
        if now - self._since >= self.patience.seconds and self._looks >= MIN_LOOKS:
            raise EngineError(
                f"The engine has requests and has not done a token's work for {now - self._since:.0f} s, longer than"
                f" {self.patience}."
            )
