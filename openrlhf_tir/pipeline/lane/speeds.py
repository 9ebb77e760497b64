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
        keep = 0.5 ** (tokens / HALF_LIFE)
        self.tokens = keep * self.tokens + tokens
        self.seconds = keep * self.seconds + seconds
        self.shared = keep * self.shared + shared


class Speeds:
    def __init__(self, slots: int) -> None:
        """`slots`: sequences of a full engine."""
        self.slots = slots
        self._all, self._lanes = Measured(), Measured()

    def measured(self, *, lane: bool, tokens: float, seconds: float, sharers: float) -> None:
        """Responses wrote `tokens` in `seconds`, theirs added up, on engines that `sharers` shared, queues included."""
        if seconds > 0 and tokens > 0:
            (self._lanes if lane else self._all).add(tokens, seconds, sharers * seconds)

    @property
    def known(self) -> bool:
        return self._all.tokens >= ENOUGH

    def line(self) -> tuple[float, float]:
        """(a, b) in seconds, and seconds per sequence. Only when `known`."""
        n, t = self._all.shared / self._all.seconds, self._all.seconds / self._all.tokens
        alone = ALONE
        if self._lanes.tokens >= ENOUGH:
            m, u = self._lanes.shared / self._lanes.seconds, self._lanes.seconds / self._lanes.tokens
            if n - m > 0.25 * self.slots:
                b = max(0.0, (t - u) / (n - m))
                full = t + b * (self.slots - n)
                alone = min(0.9, max(0.1, (full - b * self.slots) / full))
        # t = full * (alone + (1 - alone) n / slots)
        full = t / (alone + (1 - alone) * n / self.slots)
        return full * alone, full * (1 - alone) / self.slots
