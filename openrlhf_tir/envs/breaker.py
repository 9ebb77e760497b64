"""Breaker: a server that fails `threshold` calls in a row is left alone until it is healthy, then tried with few calls.

    closed --threshold failures in a row--> open --healthy after the pause--> trial --success--> closed
                                             ^------------------failure, pause doubled-----------'

Only an executed step is a success: a server whose sessions open and whose steps fail is not well. In trial one call
goes at first, and with every answer one more at once: sessions can open meanwhile, however long the first step takes to
come. Pure bookkeeping: who waits out `pause_s` and asks for the server's health is urls.py. Every call takes a ticket;
what comes back for a ticket from before the last change of state is old news and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(slots=True)
class Breaker:
    threshold: int = 5
    first_pause_s: float = 1.0
    max_pause_s: float = 10.0
    state: Literal["closed", "open", "trial"] = "closed"
    failures: int = 0
    pause_s: float = 0.0
    """How long the server is left alone before it is asked again, while the breaker is open."""
    cause: str = ""
    """Why the breaker opened, in words."""
    _ticket: int = 0
    _inside: int = 0
    _room: int = 1

    @property
    def admits(self) -> bool:
        return self.state == "closed" or (self.state == "trial" and self._inside < self._room)

    def enter(self) -> int:
        """A ticket for one call; only while `admits`. Give it back with `leave`."""
        self._inside += 1
        return self._ticket

    def leave(self, ticket: int, answered: bool) -> None:
        """The call ended. `answered`: with a proper reply, if only to a reset."""
        if ticket == self._ticket:
            self._inside -= 1
            self._room += answered

    def succeeded(self, ticket: int) -> None:
        if ticket != self._ticket:
            return
        self.failures = 0
        if self.state == "trial":
            self._become("closed")
            self.pause_s = 0.0

    def failed(self, ticket: int, cause: str) -> None:
        if ticket != self._ticket:
            return
        self.failures += 1
        if self.state == "trial" or self.failures >= self.threshold:
            self.open(cause)

    def open(self, cause: str) -> None:
        """Leave the server alone. Opened again before it ever closed, the pause doubles."""
        self.cause = cause
        self.pause_s = min(self.max_pause_s, self.pause_s * 2 or self.first_pause_s)
        self._become("open")

    def healthy(self) -> None:
        """The server says that it is up: let one call through."""
        self._become("trial")

    def _become(self, state: Literal["closed", "open", "trial"]) -> None:
        self.state, self.failures, self._inside, self._room = state, 0, 0, 1
        self._ticket += 1
