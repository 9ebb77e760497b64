"""A circuit breaker: a server that fails `threshold` calls in a row gets no calls until it is healthy, then a few.

    closed --threshold failures in a row--> open --healthy after the pause--> trial --success--> closed
                                             ^------------------failure, pause doubled-----------'

Only an executed step is a success: a server on which sessions open and steps fail is not healthy. A trial begins with
one call at a time and allows one more with every answer, so that sessions can open however long the first step takes.

The breaker only keeps the books; urls.py waits for `pause_s` and checks the server's health. Every call takes a ticket.
A result for a ticket from before the last change of state is too old to count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(slots=True)
class Breaker:
    """The circuit breaker of one server.

    Attributes:
        threshold: Failures in a row that open it.
        first_pause_s: Seconds before the first health check.
        max_pause_s: Largest pause, in seconds.
        state: "closed" (calls go through), "open" (no calls) or "trial" (a few calls).
        failures: Failures in a row.
        pause_s: Seconds before the next health check while it is open.
        cause: Why it opened, as a sentence.
    """

    threshold: int = 5
    first_pause_s: float = 1.0
    max_pause_s: float = 10.0
    state: Literal["closed", "open", "trial"] = "closed"
    failures: int = 0
    pause_s: float = 0.0
    cause: str = ""
    _ticket: int = 0
    """Number of changes of state so far."""
    _calls: int = 0
    """Calls in flight in this state."""
    _max_trial_calls: int = 1

    @property
    def admits(self) -> bool:
        """True if a call may go through now."""
        return self.state == "closed" or (self.state == "trial" and self._calls < self._max_trial_calls)

    def enter(self) -> int:
        """Return a ticket for one call, only while `admits` is true. `leave` must be called with it."""
        self._calls += 1
        return self._ticket

    def leave(self, ticket: int, answered: bool) -> None:
        """Record that a call ended.

        Args:
            ticket: The call's ticket.
            answered: True if the server sent a valid reply, even to a reset.
        """
        if ticket == self._ticket:
            self._calls -= 1
            self._max_trial_calls += answered

    def succeeded(self, ticket: int) -> None:
        """Record that a step was executed. It ends a trial."""
        if ticket != self._ticket:
            return
        self.failures = 0
        if self.state == "trial":
            self._become("closed")
            self.pause_s = 0.0

    def failed(self, ticket: int, cause: str) -> None:
        """Record that a call failed. One failure ends a trial, `threshold` failures in a row open a closed breaker."""
        if ticket != self._ticket:
            return
        self.failures += 1
        if self.state == "trial" or self.failures >= self.threshold:
            self.open(cause)

    def open(self, cause: str) -> None:
        """Let no calls through. The pause doubles if the breaker was not closed since it opened last."""
        self.cause = cause
        self.pause_s = min(self.max_pause_s, self.pause_s * 2 or self.first_pause_s)
        self._become("open")

    def healthy(self) -> None:
        """Begin a trial: a health check succeeded."""
        self._become("trial")

    def _become(self, state: Literal["closed", "open", "trial"]) -> None:
        self.state = state
        self.failures = 0
        self._calls = 0
        self._max_trial_calls = 1
        self._ticket += 1
