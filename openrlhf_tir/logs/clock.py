"""Clock: another node's wall clock against this one's, as far as its answers tell. Nodes without NTP are minutes apart,
and a timeline of both would show a response before it was asked for.

    sent ── asked ──> theirs ── answered ──> received        offset = theirs - (sent + received) / 2, give or take half
                                                             of the way there and back

Of many answers the quickest tells most (Cristian, Distributed Computing 3, 1989), until one says that a clock was
set."""

from __future__ import annotations

import logging
import math

log = logging.getLogger(__name__)
WORTH_SAYING_S = 1.0
DRIFT_S = 1.0
"""Two clocks may part by so much without one having been set: a day at 10 ppm."""


class Clock:
    """One per node or process that is asked. Seconds since the epoch, both."""

    def __init__(self, whose: str) -> None:
        self.whose, self._offset_s, self._give_or_take_s, self._said = whose, 0.0, math.inf, False

    def heard(self, sent: float, theirs: float, received: float) -> None:
        """It was asked at `sent`, answered with `theirs` and was heard at `received`. What it is off is said once."""
        offset_s, give_or_take_s = theirs - (sent + received) / 2, max(0.0, received - sent) / 2
        was_set = abs(offset_s - self._offset_s) > give_or_take_s + self._give_or_take_s + DRIFT_S
        if give_or_take_s <= self._give_or_take_s or was_set:
            self._offset_s, self._give_or_take_s = offset_s, give_or_take_s
        if abs(self.ahead_s) > WORTH_SAYING_S and not self._said:
            self._said = True
            log.warning(
                "the clock of %s is %.0f s %s the controller's, give or take %.0f. What its engines measure is put on"
                " the controller's clock; its own logs are not: let all nodes keep time (chrony, NTP).",
                self.whose,
                abs(self.ahead_s),
                "ahead of" if self.ahead_s > 0 else "behind",
                self._give_or_take_s,
            )

    @property
    def ahead_s(self) -> float:
        """0 where the way there and back may be all that was measured."""
        return self._offset_s if abs(self._offset_s) > self._give_or_take_s else 0.0

    def ours(self, theirs: float) -> float:
        return theirs - self.ahead_s
