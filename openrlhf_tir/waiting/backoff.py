"""How long to wait before something that failed is tried again: one formula for everything that retries.

    pause(n) = min(cap_s, first_s * 2^n)          n = 0, 1, 2, ...: number of the failure, from 0

Without a cap, doubling soon means that nothing is retried: 15 attempts from 1 s wait nine hours. Callers that fail at
the same moment (groups of one outage, actors of one node) also need `jittered`, or they overload the server together
again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from ..errors import Unavailable

T = TypeVar("T")

TRANSIENT_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP status codes after which a request may be sent again: the server is busy, broken or restarting."""
FIRST_S = 1.0
CAP_S = 60.0
"""Largest pause, in seconds: the end of an outage is noticed within a minute, and a server that is down is not
flooded."""
MAX_PROBE_PAUSE_S = 10.0
"""Largest pause between two attempts of `until_available`: what comes back is in use within ten seconds."""
_MAX_DOUBLINGS = 60
"""2^60 s are 36 billion years. With more doublings the float would overflow before the cap applies."""


def backoff_s(failures: int, *, first_s: float = FIRST_S, cap_s: float = CAP_S) -> float:
    """Return the seconds to wait after a failure.

    Args:
        failures: Number of the failure, from 0.
        first_s: Pause after the first failure, in seconds.
        cap_s: Largest pause, in seconds.
    """
    return min(cap_s, first_s * 2.0 ** min(max(0, failures), _MAX_DOUBLINGS))


def jittered(pause_s: float, rng: random.Random | None = None) -> float:
    """Return a uniformly random pause between half of `pause_s` and all of it.

    Callers that failed together then do not come back together, and a cap on the pause still holds.
    """
    return pause_s * (rng or random).uniform(0.5, 1.0)


def until_available(
    ask: Callable[[], T],
    wait_s: float,
    *,
    say: Callable[[str], None] = print,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Return the result of `ask`, which is repeated with growing pauses while it raises Unavailable.

    Args:
        ask: What is repeated.
        wait_s: Seconds after which the last error is raised; 0 to ask once.
        say: Prints a message before the first pause.
        clock: Returns the time in seconds.
        sleep: Waits for a number of seconds.

    Raises:
        Unavailable: `ask` still raised it after `wait_s`.
    """
    deadline = clock() + wait_s
    failures = 0
    while True:
        try:
            return ask()
        except Unavailable as e:
            remaining_s = deadline - clock()
            if remaining_s <= 0:
                raise
            if failures == 0:
                say(f"waiting up to {wait_s:g} s: {e}")
            sleep(min(remaining_s, jittered(backoff_s(failures, cap_s=MAX_PROBE_PAUSE_S))))
            failures += 1
