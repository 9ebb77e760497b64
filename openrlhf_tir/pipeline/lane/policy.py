"""Policy: which engines are lanes, and which responses go there. Facts in, a decision out; no clock, no I/O.

A response moves when the time until the gate asks for its group is only just enough for the longest rest it may have,
at a lane's speed: most end before, and those who go on need no lane sooner. Who is latest goes first; nobody does while
no place is free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ...types import GroupKey
from .sizing import Size

MAX_MOVES = 2
"""How often a response may move: to a lane, and to another if that is none any more. Each computes its prefix again."""
PATIENCE = 3
"""Sizings in a row that must ask for fewer lanes before there are: one with new groups takes long to become a lane."""


@dataclass(slots=True)
class Response:
    """One that is under way. `tokens` of the model so far; `left_s` until its group is asked for."""

    key: tuple[GroupKey, int]
    engine: str
    tokens: int
    left_s: float
    moves: int = 0


class LanePolicy:
    def __init__(self) -> None:
        self.lanes: set[str] = set()
        self.places = 0
        """Sequences that a lane is kept at."""
        self._fewer = 0

    def resize(self, size: Size, load: Mapping[str, int]) -> None:
        """So many lanes from now on. `load`: responses of each engine that is up. The emptiest become lanes, so that
        they soon are fast."""
        self.gone(load)
        self.places = size.places or self.places
        self._fewer = self._fewer + 1 if size.lanes < len(self.lanes) else 0
        if self._fewer >= PATIENCE:
            self.lanes = set(sorted(self.lanes, key=lambda e: (-load[e], e))[: size.lanes])
            self._fewer = 0
        others = sorted(set(load) - self.lanes, key=lambda e: (load[e], e))
        self.lanes.update(others[: max(0, min(size.lanes, len(load) - 1) - len(self.lanes))])

    def gone(self, up: Collection[str]) -> None:
        """Only engines that are up are lanes, and one at least is none."""
        self.lanes &= set(up)
        while self.lanes and len(self.lanes) >= len(up):
            self.lanes.remove(max(self.lanes))

    def moves(
        self, responses: Sequence[Response], longest: float, lane_token_s: float
    ) -> list[tuple[tuple[GroupKey, int], str]]:
        """(response, lane), the latest first."""
        load = Counter(r.engine for r in responses)
        room = {e: self.places - load[e] for e in sorted(self.lanes)}
        late = [
            (r.left_s - (longest - r.tokens) * lane_token_s, i)
            for i, r in enumerate(responses)
            if r.engine not in self.lanes
            and r.moves < MAX_MOVES
            and r.left_s <= (longest - r.tokens) * lane_token_s
            and r.tokens < longest
        ]
        decided: list[tuple[tuple[GroupKey, int], str]] = []
        for _, i in sorted(late):
            lane = max(room, key=lambda e: room[e], default=None)
            if lane is None or room[lane] <= 0:
                break
            room[lane] -= 1
            decided.append((responses[i].key, lane))
        return decided
