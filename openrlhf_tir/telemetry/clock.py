"""The offset of another node's wall clock, measured by the answers to requests.

Nodes without NTP can be minutes apart, and a timeline of both would show a response before its request.

    sent -- request --> remote -- answer --> received        offset = remote - (sent + received) / 2,
                                                             uncertain by half of the round trip

The answer with the shortest round trip is the most exact (Cristian, Distributed Computing 3, 1989). It is kept until an
answer shows that a clock was set.
"""

from __future__ import annotations

import logging
import math

log = logging.getLogger(__name__)
WORTH_SAYING_S = 1.0
"""A larger offset is logged."""
DRIFT_S = 1.0
"""Two clocks may drift apart by this much without one of them having been set: a day at 10 ppm."""


class Clock:
    """The clock of one other node or process. All times are seconds since the epoch."""

    def __init__(self, whose: str) -> None:
        self.whose = whose
        self._offset_s = 0.0
        self._uncertainty_s = math.inf
        self._was_reported = False

    def record_answer(self, sent: float, remote: float, received: float) -> None:
        """Take the offset from one answer. An offset above WORTH_SAYING_S is logged once.

        Args:
            sent: When the request was sent, by this clock.
            remote: What the other clock said.
            received: When the answer arrived, by this clock.
        """
        offset_s = remote - (sent + received) / 2
        uncertainty_s = max(0.0, received - sent) / 2
        was_set = abs(offset_s - self._offset_s) > uncertainty_s + self._uncertainty_s + DRIFT_S
        if uncertainty_s <= self._uncertainty_s or was_set:
            self._offset_s = offset_s
            self._uncertainty_s = uncertainty_s
        if abs(self.ahead_s) > WORTH_SAYING_S and not self._was_reported:
            self._was_reported = True
            log.warning(
                "the clock of %s is %.0f s %s the controller's (+/- %.0f s). Times that its engines report are"
                " corrected, its own logs are not: synchronise the clocks of all nodes (chrony, NTP).",
                self.whose,
                abs(self.ahead_s),
                "ahead of" if self.ahead_s > 0 else "behind",
                self._uncertainty_s,
            )

    @property
    def ahead_s(self) -> float:
        """Seconds that the other clock is ahead; 0.0 while the round trip alone may explain the difference."""
        return self._offset_s if abs(self._offset_s) > self._uncertainty_s else 0.0

    def to_local(self, remote: float) -> float:
        """Return a time of the other clock as this clock shows it."""
        return remote - self.ahead_s
