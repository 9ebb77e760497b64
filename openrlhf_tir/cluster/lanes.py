"""The fast lane on real actors: what pipeline/lane/keeper.py asks of a rollout, by Ray calls.

keeper -> under_way: every actor says how far its trajectories are
       -> move: the actor that writes one hands what it samples next to the lane's actor, directly: tokens do not pass
       the controller
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..actors.router import Router
from ..errors import InfraError
from ..types import GroupKey
from .peer_engine import MovesResponses


class Pool(Protocol):
    """The actors: cluster/engine_pool.py, and the emulated cluster of benchmarks/pipeline."""

    lane_engines: float
    lane_moves: float

    @property
    def members(self) -> Sequence[Any]:
        """Of each the name, actor, call and unresponsive of cluster/engine_handle.py are used."""

    @property
    def router(self) -> Router[Any]: ...


@dataclass(frozen=True, slots=True)
class UnderWay:
    """One trajectory, as the keeper sees it. `home`: the actor that writes it; `engine`: the one that samples it."""

    group: GroupKey
    sample: int
    engine: str
    tokens: int
    moves: int
    home: str
    name: str


class PoolLanes:
    """Implements pipeline.lane.keeper.MovingRollout."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    @property
    def engines(self) -> list[str]:
        """Without those that are to leave, whose guests would have to move again, and those that do not answer."""
        return [seat.name for seat in self.pool.router.seats.values() if not seat.draining and not seat.suspect]

    def reserve(self, lanes: Collection[str], live: Mapping[str, int]) -> None:
        self.pool.router.reserve(lanes)
        self.pool.router.looked(live)
        self.pool.lane_engines = float(len(lanes))

    async def under_way(self) -> list[UnderWay]:
        """What is under way on the actors that answer; one that is lost is replaced by whoever finds it so."""
        members = list(self.pool.members)
        asking = [member.call(MovesResponses.under_way, deadline=member.unresponsive) for member in members]
        told = await asyncio.gather(*asking, return_exceptions=True)
        said: dict[str, Any] = {}
        for member, answer in zip(members, told, strict=True):
            if not isinstance(answer, BaseException):
                said[member.name] = answer
            elif not isinstance(answer, InfraError):
                raise answer
        found = []
        for home, (paths, _) in said.items():
            for name, path in paths:
                at = path.at or home
                sampled = said[at][1].get(path.request, 0) if at in said else 0
                group, _, sample = name.partition("#")
                found.append(
                    UnderWay(
                        GroupKey(*map(int, group.split("/"))),
                        int(sample),
                        at,
                        path.tokens + sampled,
                        path.moves,
                        home,
                        name,
                    )
                )
        return found

    async def move(self, response: UnderWay, engine: str) -> bool:
        by_name = {m.name: m for m in self.pool.members}
        home, target = by_name.get(response.home), by_name.get(engine)
        if home is None or target is None:
            return False
        try:
            moved = await home.call(
                MovesResponses.move, response.name, engine, target.actor, deadline=home.unresponsive
            )
        except InfraError:
            return False
        self.pool.lane_moves += moved
        return moved
