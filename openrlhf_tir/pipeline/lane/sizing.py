"""Sizing: how many engines should be lanes, and with how many places, for the shortest time between two steps.

With steps every P seconds, of which the learner takes T once the batch is whole and the push p, a group has W(P) = (S +
1 - LATE) P - T - p for its longest response, which is x tokens: the first k on a full engine, the rest on a lane. A
token takes t(n) = a + b n seconds where n share an engine, which then writes n / t(n) a second.

    lanes     m engines with s places write m s / t(s): what the batch's responses have beyond k, so k follows from P, m
              and s
    others    N - m engines write the rest, with as many sequences n as that takes: n / t(n) = rest / (P (N - m)), at
              most full
    longest   k t(n) + (x - k) t(s) <= W(P)

The least P that fulfils all three is found by bisection for every (m, s); m = 0 unless another is better by WORTH.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

LATE = 0.5
"""Share of a period by which groups start, on average, after the push of their version."""
SHARES = (0.125, 0.1875, 0.25)
"""Places of a lane that are tried, as shares of a full engine's sequences."""
WORTH = 0.03
"""Share by which lanes must shorten the period to be worth their moves."""
LONGEST_PERIOD = 16.0
"""The longest period that is compared, in multiples of T + p."""
ROUNDS = 12
"""Steps of the bisection, which find a period to within .4 %."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The engines and the learner, as far as sizing needs them.

    Attributes:
        engines: Number of engines.
        slots: Sequences of a full engine.
        responses: Responses rolled per batch.
        step_s: Seconds of a step, push included.
        ahead: Whole batches that may be trained between a group's dispatch and its own batch (scheduler/staleness.py).
        a_s: Seconds per token of a lone response.
        b_s: Seconds per token that each sharer of an engine adds.
        before_s: Seconds of the learner's work on a batch before it is complete (pipeline.early_accumulation).
    """

    engines: int
    slots: int
    responses: float
    step_s: float
    ahead: int
    a_s: float
    b_s: float
    before_s: float = 0.0

    def token_s(self, sharers: float) -> float:
        return self.a_s + self.b_s * sharers


@dataclass(frozen=True, slots=True)
class Size:
    """A division of the engines.

    Attributes:
        lanes: Number of fast-lane engines.
        places: Sequences of each.
        period_s: Seconds between two steps that this division allows.
    """

    lanes: int
    places: int
    period_s: float


def best_size(
    cluster: Cluster, positions_K: np.ndarray, survival_K: np.ndarray, longest: float, most: int, least: int = 0
) -> Size:
    """Return the division with the shortest period; none if lanes gain too little.

    Args:
        cluster: The engines and the learner.
        positions_K: Lengths in tokens.
        survival_K: Share of responses that are longer than each of `positions_K`.
        longest: Tokens that the longest response is planned for.
        most: Lanes at most.
        least: Lanes at least.
    """
    beyond_K = np.append(np.cumsum((0.5 * (survival_K[1:] + survival_K[:-1]) * np.diff(positions_K))[::-1])[::-1], 0.0)
    found = [Size(0, 0, _period(cluster, 0, 0, positions_K, beyond_K, longest))] if not least else []
    for m in range(max(1, least), most + 1):
        for places in _places(cluster.slots):
            found.append(Size(m, places, _period(cluster, m, places, positions_K, beyond_K, longest)))
    best = min(found, key=lambda size: (size.period_s, size.lanes))
    none = found[0]
    return none if none.lanes == 0 and best.period_s > (1 - WORTH) * none.period_s else best


def _places(slots: int) -> Iterable[int]:
    return sorted({max(1, round(slots * share)) for share in SHARES})


def _period(c: Cluster, m: int, places: int, positions_K: np.ndarray, beyond_K: np.ndarray, longest: float) -> float:
    low = c.step_s + c.before_s
    high = LONGEST_PERIOD * low
    if _fits(c, m, places, positions_K, beyond_K, longest, low):
        return low
    for _ in range(ROUNDS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if _fits(c, m, places, positions_K, beyond_K, longest, middle) else (middle, high)
    return high


def _fits(
    c: Cluster, m: int, places: int, positions_K: np.ndarray, beyond_K: np.ndarray, longest: float, period_s: float
) -> bool:
    lane_s = c.token_s(places)
    from_k = longest
    on_lanes = 0.0
    if m:
        on_lanes = min(beyond_K[0], m * places / lane_s * period_s / c.responses)  # tokens per response
        from_k = min(longest, float(np.interp(-on_lanes, -beyond_K, positions_K)))
    rate = c.responses * (beyond_K[0] - on_lanes) / (period_s * (c.engines - m))
    spare = 1 - rate * c.b_s
    sharers = rate * c.a_s / spare if spare > 0 else np.inf
    window_s = (c.ahead + 1 - LATE) * period_s - c.step_s
    return bool(sharers <= c.slots and from_k * c.token_s(sharers) + (longest - from_k) * lane_s <= window_s)
