"""The fast lane on real engines: what pipeline/lane/keeper.py asks of a rollout, by Ray calls.

under_way    every engine reports how far its trajectories are
move         the actor that writes a trajectory samples the rest of it on another engine, directly: tokens do not
             pass through the controller
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import InfraError
from ..pipeline.router import Router
from ..types import GroupKey
from .peer_engine import MovesResponses


class Pool(Protocol):
    """The engines: cluster/engine_pool.py, and the emulated cluster of benchmarks/pipeline."""

    lane_engines: float
    lane_moves: float

    @property
    def members(self) -> Sequence[Any]:
        """Name, actor, call and unresponsive of cluster/engine_handle.py are used of each."""

    @property
    def router(self) -> Router[Any]: ...


@dataclass(frozen=True, slots=True)
class UnderWay:
    """One unfinished trajectory.

    Attributes:
        group: The group that it belongs to.
        sample: Its index in the group.
        engine: Name of the engine that samples it.
        tokens: Model tokens sampled so far.
        moves: How often it was moved.
        home: Name of the engine whose actor writes it.
        name: The part of its request ids before the turn.
    """

    group: GroupKey
    sample: int
    engine: str
    tokens: int
    moves: int
    home: str
    name: str


class PoolLanes:
    """Implements pipeline.lane.keeper.MovingRollout on a pool."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    @property
    def engines(self) -> list[str]:
        """Names of the engines that can be in the fast lane.

        A draining engine cannot: its responses would have to move again. Neither can one that does not answer.
        """
        routed_engines = self.pool.router.engines.values()
        return [routed.name for routed in routed_engines if not routed.draining and not routed.silent]

    def reserve(self, lanes: Collection[str], live: Mapping[str, int]) -> None:
        """Set the engines of the fast lane, and the number of unfinished responses on every engine."""
        self.pool.router.reserve(lanes)
        self.pool.router.record_sampling(live)
        self.pool.lane_engines = float(len(lanes))

    async def under_way(self) -> list[UnderWay]:
        """Return the unfinished trajectories of the engines that answer. Lost engines are replaced by their owner."""
        members = list(self.pool.members)
        asking = [member.call(MovesResponses.under_way, deadline=member.unresponsive) for member in members]
        answers = await asyncio.gather(*asking, return_exceptions=True)
        reports: dict[str, Any] = {}
        for member, answer in zip(members, answers, strict=True):
            if not isinstance(answer, BaseException):
                reports[member.name] = answer
            elif not isinstance(answer, InfraError):
                raise answer
        trajectories = []
        for home, (paths, _) in reports.items():
            for name, path in paths:
                engine = path.at or home
                # The engine that samples a request knows its progress, and it may be another one than its home.
                sampled = reports[engine][1].get(path.request, 0) if engine in reports else 0
                key, _, sample = name.partition("#")
                group = GroupKey(*map(int, key.split("/")))
                trajectories.append(UnderWay(group, int(sample), engine, path.tokens + sampled, path.moves, home, name))
        return trajectories

    async def move(self, response: UnderWay, engine: str) -> bool:
        """Move a response to another engine. Return False if it has ended, or one of the two engines is gone."""
        by_name = {member.name: member for member in self.pool.members}
        home = by_name.get(response.home)
        target = by_name.get(engine)
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
