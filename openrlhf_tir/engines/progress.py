"""Notice an engine that has requests but does no work: its process may answer while its GPU hangs."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..errors import EngineError
from ..waiting.deadlines import Deadline

PATIENCE = Deadline(600.0, "progress.PATIENCE")
"""How long an engine with requests may do nothing. It must be longer than the longest prefill: vLLM reports the tokens
of a prefill together with the first token that is sampled after it."""
MIN_LOOKS = 3
"""Least number of checks in a row without progress. After the whole process was suspended, the first check finds that
the time has passed and nothing was done, which is not the engine's fault."""


class Progress:
    """Compares the work done at successive heartbeats. Call `check` at each of them."""

    def __init__(self, patience: Deadline = PATIENCE, clock: Callable[[], float] = time.monotonic) -> None:
        self.patience = patience
        self._clock = clock
        self._done: int | None = None
        self._since = 0.0
        self._looks = 0

    def check(self, done: int, *, busy: bool) -> None:
        """Check that a busy engine has done something lately.

        Args:
            done: Tokens that were sampled or prefilled since the engine started.
            busy: True if the engine has requests and is not paused.

        Raises:
            EngineError: It was busy for longer than `patience` without doing anything.
        """
        now = self._clock()
        if not busy or done != self._done:
            self._done = done
            self._since = now
            self._looks = 0
            return
        self._looks += 1
        if now - self._since >= self.patience.seconds and self._looks >= MIN_LOOKS:
            raise EngineError(
                f"The engine has requests and has not done a token's work for {now - self._since:.0f} s, longer than"
                f" {self.patience}."
            )
