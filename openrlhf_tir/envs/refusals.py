"""Refusals: how long a server that had no room is left alone. Its word counts within bounds; refusals in a row make the
pause grow.

pause = max(what the server said, FIRST_S * 2 ** (refusals in a row - 1)), the second at most MOST_S
"""

from __future__ import annotations

import math

from ..backoff import backoff_s

LEAST_S, DEFAULT_S, LONGEST_S = 0.02, 1.0, 60.0
"""Bounds of a server's own word, and what stands for one that says nothing usable."""
FIRST_S, MOST_S = 0.01, 5.0
"""First and longest step of the growing pause: short at first, as room comes free with every answer of others."""


def seconds(retry_after: str | None) -> float:
    """Retry-After in seconds within its bounds; DEFAULT_S when it is missing, a date, negative or no number."""
    try:
        value = float(retry_after or DEFAULT_S)
    except ValueError:
        return DEFAULT_S
    return min(LONGEST_S, max(LEAST_S, value)) if math.isfinite(value) and value >= 0 else DEFAULT_S


class Refusals:
    """Those of one server since it last took a call."""

    def __init__(self) -> None:
        self.in_a_row = 0
        self.last = float("-inf")
        """When the last refusal came, in the event loop's seconds."""

    def refused(self, sent_at: float, now: float) -> bool:
        """Whether this is another refusal: calls that were under way together are refused together, once."""
        if sent_at <= self.last:
            return False
        self.last = now
        self.in_a_row += 1
        return True

    def taken(self) -> None:
        self.in_a_row = 0

    def pause_s(self, after_s: float) -> float:
        """`after_s` is the server's word."""
        return max(after_s, backoff_s(self.in_a_row - 1, first_s=FIRST_S, cap_s=MOST_S))
