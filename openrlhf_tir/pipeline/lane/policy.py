"""Which engines are fast-lane engines ("lanes"), and which responses move there. Pure decisions: no clock, no I/O.

A response moves when the time until the gate asks for its group only just suffices for the longest rest it may have at
a lane's speed. Most responses finish before that, and those that continue need no lane sooner. The response with the
least slack moves first; none moves while no place is free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from ...types import GroupKey
from .sizing import Size

MAX_MOVES = 2
"""Moves of a response at most: to a lane, and to another one if the first stops being a lane. Each move computes the
response's prefix again."""
PATIENCE = 3
"""Sizings in a row that must ask for fewer lanes before one is given up: an engine with new groups takes long to become
a lane again."""


class UnderWay(Protocol):
    """A response that is under way, on an engine or with a tool.

    Attributes:
        group: Key of its group.
        sample: Its number in the group.
        engine: Name of the engine that writes it.
        tokens: Model tokens so far.
        moves: How often it was moved.
    """

    @property
    def group(self) -> GroupKey: ...
    @property
    def sample(self) -> int: ...
    @property
    def engine(self) -> str: ...
    @property
    def tokens(self) -> int: ...
    @property
    def moves(self) -> int: ...


class LanePolicy:
    """Decides which engines are lanes and which responses move to them.

    Attributes:
        lanes: Names of the engines that are lanes.
        places: Sequences that a lane is kept at.
    """

    def __init__(self) -> None:
        self.lanes: set[str] = set()
        self.places = 0
        self._fewer = 0

    def resize(self, size: Size, load: Mapping[str, int]) -> None:
        """Set the number of lanes. The emptiest engines become lanes, so that they are fast soon.

        Args:
            size: Number of lanes and of their places.
            load: Responses on each engine that is up.
        """
        self.gone(load)
        self.places = size.places or self.places
        self._fewer = self._fewer + 1 if size.lanes < len(self.lanes) else 0
        if self._fewer >= PATIENCE:
            self.lanes = set(sorted(self.lanes, key=lambda e: (-load[e], e))[: size.lanes])
            self._fewer = 0
        others = sorted(set(load) - self.lanes, key=lambda e: (load[e], e))
        self.lanes.update(others[: max(0, min(size.lanes, len(load) - 1) - len(self.lanes))])

    def gone(self, up: Collection[str]) -> None:
        """Remove lanes that are not up, and keep at least one engine that is no lane."""
        self.lanes &= set(up)
        while self.lanes and len(self.lanes) >= len(up):
            self.lanes.remove(max(self.lanes))

    def moves(
        self, responses: Sequence[tuple[UnderWay, float]], longest: float, lane_token_s: float
    ) -> list[tuple[UnderWay, str]]:
        """Return which responses move to which lane, the one with the least slack first.

        Args:
            responses: The responses under way, each with the seconds until the gate asks for its group.
            longest: Tokens that a response is planned for.
            lane_token_s: Seconds per token on a lane.
        """
        late: list[tuple[float, int]] = []
        for i, (response, left_s) in enumerate(responses):
            rest_s = (longest - response.tokens) * lane_token_s
            may_move = response.engine not in self.lanes and response.moves < MAX_MOVES and response.tokens < longest
            if may_move and left_s <= rest_s:
                late.append((left_s - rest_s, i))
        load = Counter(response.engine for response, _ in responses)
        room = {lane: self.places - load[lane] for lane in sorted(self.lanes)}
        decided: list[tuple[UnderWay, str]] = []
        for _, i in sorted(late):
            lane = max(room, key=lambda e: room[e], default=None)
            if lane is None or room[lane] <= 0:
                break
            room[lane] -= 1
            decided.append((responses[i][0], lane))
        return decided
