"""How long a token of one response takes on an engine that n responses share: a + b n seconds.

A step of an engine reads all weights once, however many sequences take part (a), and does work for each sequence (b).
It is measured by the progress of responses, so it includes pushes, prefixes that are computed again and tool calls: a
response waits for all of them. It also waits for a place. If an engine has more responses than places, all of them
count as sharers, and a token of each takes longer accordingly.
"""

from __future__ import annotations

from dataclasses import dataclass

ALONE = 0.4
"""Seconds per token of a lone response, relative to those on a full engine. Assumed until both were measured."""
HALF_LIFE = 200_000.0
"""Tokens after which earlier measurements count half."""
ENOUGH = 20_000.0
"""Tokens that a measurement needs before it is used."""


@dataclass(slots=True)
class Measured:
    """Decaying sums of what responses wrote.

    Attributes:
        tokens: Tokens written.
        seconds: Seconds that the responses took, added up over responses.
        shared: The same seconds, each times the number of sequences that shared the engine.
    """

    tokens: float = 0.0
    seconds: float = 0.0
    shared: float = 0.0

    def add(self, tokens: float, seconds: float, shared: float) -> None:
        """Add a measurement; earlier ones decay with its tokens."""
        keep = 0.5 ** (tokens / HALF_LIFE)
        self.tokens = keep * self.tokens + tokens
        self.seconds = keep * self.seconds + seconds
        self.shared = keep * self.shared + shared


class Speeds:
    """Measures how long a token takes on full engines and on those of the fast lane."""

    def __init__(self, slots: int) -> None:
        """Create a measurement without data.

        Args:
            slots: Sequences of a full engine.
        """
        self.slots = slots
        self._all = Measured()
        self._lanes = Measured()

    def record(self, *, lane: bool, tokens: float, seconds: float, sharers: float) -> None:
        """Record what some responses wrote.

        Args:
            lane: True for responses on the fast lane.
            tokens: Tokens that they wrote.
            seconds: Seconds that they took, added up over responses.
            sharers: Sequences that shared their engine, waiting ones included.
        """
        if seconds > 0 and tokens > 0:
            (self._lanes if lane else self._all).add(tokens, seconds, sharers * seconds)

    @property
    def known(self) -> bool:
        """True once enough was measured to use `line`."""
        return self._all.tokens >= ENOUGH

    def line(self) -> tuple[float, float]:
        """Return a in seconds and b in seconds per sequence, for a + b n seconds per token. Only if `known`.

        It is the line through the two measurements (all engines, fast lane). Without one of the fast lane, a lone
        response is assumed to take ALONE of the time on a full engine.
        """
        sharers = self._all.shared / self._all.seconds
        token_s = self._all.seconds / self._all.tokens
        alone = ALONE
        if self._lanes.tokens >= ENOUGH:
            lane_sharers = self._lanes.shared / self._lanes.seconds
            lane_token_s = self._lanes.seconds / self._lanes.tokens
            # Two points that are close together would give any slope.
            if sharers - lane_sharers > 0.25 * self.slots:
                slope = max(0.0, (token_s - lane_token_s) / (sharers - lane_sharers))
                full_token_s = token_s + slope * (self.slots - sharers)
                alone = min(0.9, max(0.1, (full_token_s - slope * self.slots) / full_token_s))
        # token_s = full_token_s * (alone + (1 - alone) * sharers / slots)
        full_token_s = token_s / (alone + (1 - alone) * sharers / self.slots)
        return full_token_s * alone, full_token_s * (1 - alone) / self.slots
