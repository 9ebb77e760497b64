"""Move responses between rollout actors: the engine of another actor, and what an actor answers about its responses.

The mechanism is rollout/sequence_migration.py; this module has the Ray calls. They are made only in runs with a fast
lane.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import ray

from ..config import Config
from ..engines.codec import HfCodec, text_of
from ..errors import ConfigError, EngineGone
from ..rollout.sequence_migration import Abortable, SamplingLocation, SequenceMigration
from ..types import Completion, Sampling
from ..waiting.deadlines import Deadline, within
from .ray_faults import death

if TYPE_CHECKING:
    from ..rollout.group_runner import GroupRunner
    from ..rollout.request_queue import RequestQueue


def migration_of(cfg: Config, queue: RequestQueue, codec: HfCodec) -> SequenceMigration | None:
    """Return the SequenceMigration of an actor's responses; None in a run without a fast lane.

    Raises:
        ConfigError: Requests of this kind of engine cannot be stopped in the middle.
    """
    if cfg.pipeline.fast_lane == "off":
        return None
    engine = queue.engine
    if not isinstance(engine, Abortable):
        raise ConfigError(
            f"pipeline.fast_lane = {cfg.pipeline.fast_lane!r} moves responses that are being sampled, and"
            f" {type(engine).__name__} cannot stop one: it has no abort and progress."
            " Set pipeline.fast_lane = 'off', or give the engine both."
        )
    return SequenceMigration(queue, partial(text_of, codec))


class PeerEngine:
    """The engine of another rollout actor. Implements engines.sequence_migration.OtherEngine."""

    def __init__(self, actor: Any, name: str, cfg: Config) -> None:
        self.actor = actor
        self.name = name
        self.cfg = cfg

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        """Sample the rest of a response there.

        Raises:
            EngineGone: The other actor is dead.
            DeadlineMissed: It did not answer for as long as a whole group may take.
        """
        ref = self.actor.generate.remote(list(token_ids), sampling, request_id)
        try:
            return await within(
                Deadline.of(self.cfg, "rollout.group_deadline_s"),
                ref,
                f"A response's continuation at {self.name}",
            )
        except asyncio.CancelledError:
            ray.cancel(ref)  # The continuation is not wanted any more.
            raise
        except ray.exceptions.RayError as error:
            reason = death(error)
            if reason is None:
                raise
            raise EngineGone(f"{self.name}, to which a response had moved, is lost: {reason}") from error

    async def abort(self, request_id: str) -> None:
        """Ask the other actor to end a request, and do not wait for its answer.

        The request itself is answered when it was stopped. If the other actor hangs, this one must not seem to hang as
        well; if it is dead, there is nothing to stop.
        """
        self.actor.abort.remote(request_id)


class MovesResponses:
    """The methods of a rollout actor that a fast lane calls: a part of RolloutActor."""

    name: str
    cfg: Config
    request_queue: RequestQueue
    runner: GroupRunner

    async def under_way(self) -> tuple[list[tuple[str, SamplingLocation]], dict[str, int]]:
        """Return the trajectories that this actor writes, and the tokens sampled so far of each request here."""
        migration = self._migration
        return migration.under_way(), migration.engine.progress()

    async def move(self, trajectory: str, name: str, actor: Any) -> bool:
        """Sample the rest of a trajectory, which this actor writes, on another actor's engine.

        Args:
            trajectory: The part of its request ids before the turn.
            name: Name of the other actor; this actor's own name moves the trajectory back.
            actor: Its Ray handle.

        Returns:
            False if the trajectory has ended, or is there already.
        """
        peer = None if name == self.name else PeerEngine(actor, name, self.cfg)
        return await self._migration.move(trajectory, name, peer)

    @property
    def _migration(self) -> SequenceMigration:
        migration = self.runner.migration
        assert migration is not None, "only in a run with a fast lane"
        return migration

    async def generate(self, token_ids: list[int], sampling: Sampling, request_id: str) -> Completion:
        """Sample for a trajectory of another actor. The request waits in the queue like any other."""
        return await self.request_queue.generate(token_ids, sampling, request_id=request_id)

    async def abort(self, request_id: str) -> None:
        """End a request that another actor made by `generate`."""
        await self.request_queue.abort(request_id)
