"""An engine that another rollout actor has: where a response goes on that was handed over (engines/handover.py); and
what an actor answers so that its own can be one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import ray

from ..config import Config
from ..deadlines import Deadline, within
from ..engines.codec import HfCodec, text_of
from ..engines.handover import Abortable, Handover, Path
from ..errors import ConfigError, EngineGone
from ..types import Completion, Sampling
from .ray_faults import death

if TYPE_CHECKING:
    from ..engines.batcher import Batcher
    from ..episodes.group import GroupRunner


def handover_of(cfg: Config, batcher: Batcher, codec: HfCodec) -> Handover | None:
    """For the engine behind `batcher`, and what waits for it. None in a run without a fast lane. Raises ConfigError for
    an engine whose requests cannot be stopped in the middle."""
    if cfg.pipeline.fast_lane == "off":
        return None
    if not isinstance(engine := batcher.engine, Abortable):
        raise ConfigError(
            f"pipeline.fast_lane = {cfg.pipeline.fast_lane!r} moves responses that are being sampled, and"
            f" {type(engine).__name__} cannot stop one: it has no abort and progress."
            " Set pipeline.fast_lane = 'off', or give the engine both."
        )
    return Handover(batcher, partial(text_of, codec))


class PeerEngine:
    """Another rollout actor's engine, as an Engine."""

    def __init__(self, actor: Any, name: str, cfg: Config) -> None:
        self.actor, self.name, self.cfg = actor, name, cfg

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        """Raises EngineGone when the actor is no more, DeadlineMissed when silent for as long as a group takes."""
        ref = self.actor.generate.remote(list(token_ids), sampling, request_id)
        try:
            return await within(
                Deadline.of(self.cfg, "rollout.group_deadline_s"),
                _result(ref),
                f"A response's continuation at {self.name}",
            )
        except asyncio.CancelledError:
            ray.cancel(ref)  # nobody wants it any more
            raise
        except ray.exceptions.RayError as e:
            if (what := death(e)) is None:
                raise
            raise EngineGone(f"{self.name}, to which a response had moved, is lost: {what}") from e

    async def abort(self, request_id: str) -> None:
        """Asks for it, and waits for nothing: the request is answered when it is stopped, and this actor is not to be
        taken for hung because the other is. One that is no more has nothing to stop."""
        self.actor.abort.remote(request_id)


async def _result(ref: Any) -> Any:
    return await ref


class MovesResponses:
    """What a rollout actor is asked in a run with a fast lane."""

    name: str
    cfg: Config
    batcher: Batcher
    runner: GroupRunner

    async def under_way(self) -> tuple[list[tuple[str, Path]], dict[str, int]]:
        """The trajectories that this actor writes, how far its engine is with each."""
        handover = self._handover
        return handover.under_way(), handover.engine.progress()

    async def move(self, trajectory: str, name: str, actor: Any) -> bool:
        """The trajectory, which this actor writes, is sampled at another actor from now on; at this one where it is
        this one's own name."""
        there = None if name == self.name else PeerEngine(actor, name, self.cfg)
        return await self._handover.move(trajectory, name, there)

    @property
    def _handover(self) -> Handover:
        handover = self.runner.handover
        assert handover is not None, "only in a run with a fast lane"
        return handover

    async def generate(self, token_ids: list[int], sampling: Sampling, request_id: str) -> Completion:
        """For a trajectory of another actor. It queues like everyone."""
        return await self.batcher.generate(token_ids, sampling, request_id=request_id)

    async def abort(self, request_id: str) -> None:
        await self.batcher.abort(request_id)
