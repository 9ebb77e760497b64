"""Back-off: how long to wait before something that failed is tried again. One formula for everything in this project
that retries.

    pause(n) = min(cap_s, first_s * 2^n)          n = 0, 1, 2, ...: failures so far, the first one being 0

Without a cap doubling is no pause any more but an end: 15 tries from 1 s sleep nine hours. What many do at once (groups
of one outage, actors of one node) also needs `jittered`, or they come back together and knock the server over again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from ..errors import Unavailable

T = TypeVar("T")

FIRST_S = 1.0
CAP_S = 60.0
"""Default of `train.max_backoff_s`: an outage's end is noticed within a minute, and who is down is not flooded."""
ASK_AGAIN_S = 10.0
"""The longest pause between two questions whether something is there: what comes back is in use within ten seconds."""
_MOST_DOUBLINGS = 60
"""2^60 s are 36 billion years; beyond, a float would overflow before the cap is looked at."""


def backoff_s(failures: int, *, first_s: float = FIRST_S, cap_s: float = CAP_S) -> float:
    """Seconds to wait after the `failures`-th failure, counted from 0: first_s doubled each time, at most cap_s."""
    return min(cap_s, first_s * 2.0 ** min(max(0, failures), _MOST_DOUBLINGS))


def jittered(pause_s: float, rng: random.Random | None = None) -> float:
    """Between half of `pause_s` and all of it, uniformly: those who failed together do not come back together, and the
    cap still holds."""
    return pause_s * (rng or random).uniform(0.5, 1.0)


def until_available(
    ask: Callable[[], T],
    wait_s: float,
    *,
    say: Callable[[str], None] = print,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """`ask()`, again while it raises Unavailable, for `wait_s` seconds; then the last one is raised. 0: once."""
    give_up, failures = clock() + wait_s, 0
    while True:
        try:
            return ask()
        except Unavailable as e:
            left = give_up - clock()
            if left <= 0:
                raise
            if not failures:
                say(f"waiting up to {wait_s:g} s: {e}")
            sleep(min(left, jittered(backoff_s(failures, cap_s=ASK_AGAIN_S))))
            failures += 1
