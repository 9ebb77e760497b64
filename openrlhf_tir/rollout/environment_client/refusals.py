"""How long a server that had no room gets no call.

pause = max(Retry-After within its bounds, min(FIRST_PAUSE_S * 2 ** (refusals in a row - 1), MAX_PAUSE_S))
"""

from __future__ import annotations

import math

from ...waiting.backoff import backoff_s

MIN_RETRY_AFTER_S = 0.02
MAX_RETRY_AFTER_S = 60.0
DEFAULT_RETRY_AFTER_S = 1.0
"""Used if the server's Retry-After is missing or unusable."""
FIRST_PAUSE_S = 0.01
"""First step of the growing pause. It is short because room comes free with every answer to others."""
MAX_PAUSE_S = 5.0
"""Largest step of the growing pause."""


def seconds(retry_after: str | None) -> float:
    """Return Retry-After in seconds within its bounds; the default if it is missing, a date, negative or not a
    number."""
    try:
        value = float(retry_after or DEFAULT_RETRY_AFTER_S)
    except ValueError:
        return DEFAULT_RETRY_AFTER_S
    if not math.isfinite(value) or value < 0:
        return DEFAULT_RETRY_AFTER_S
    return min(MAX_RETRY_AFTER_S, max(MIN_RETRY_AFTER_S, value))


class Refusals:
    """The refusals of one server since it last took a call.

    Attributes:
        in_a_row: Their number.
        last: Event loop time of the last one, in seconds.
    """

    def __init__(self) -> None:
        self.in_a_row = 0
        self.last = float("-inf")

    def refused(self, sent_at: float, now: float) -> bool:
        """Record a refusal and return True if it is a new one.

        Calls that were in flight together are refused together, which counts as one refusal.

        Args:
            sent_at: Event loop time at which the call was sent, in seconds.
            now: Event loop time in seconds.
        """
        if sent_at <= self.last:
            return False
        self.last = now
        self.in_a_row += 1
        return True

    def taken(self) -> None:
        """Record that the server took a call."""
        self.in_a_row = 0

    def pause_s(self, after_s: float) -> float:
        """Return the pause in seconds. `after_s` is the server's Retry-After."""
        return max(after_s, backoff_s(self.in_a_row - 1, first_s=FIRST_PAUSE_S, cap_s=MAX_PAUSE_S))
