"""Reward models: a process per replica, found by name from the rollout actors, which ask them for the scores of their
trajectories.

A replica that dies is started again by Ray; what was asked of it meanwhile fails its sample (RewardModelError), whose
group is issued again. It never becomes a reward.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ...config import Config
from ...errors import DeadlineMissed, RewardModelError
from ...types import Trajectory
from ...waiting.deadlines import Deadline, within
from ..lost import end_of, watched
from ..nodes import reward_room
from ..ray_faults import death
from ..ray_session import place, worker_env

if TYPE_CHECKING:
    from ...engines.reward_model import RewardModel

RESTARTS = 20
"""How often Ray restarts a replica in a run: more deaths than that are no accident."""


def _name(replica: int) -> str:
    return f"reward-model-{replica}"


class RewardModelActor:
    """A replica's process. It loads the model when it is first asked: by `ready`, or after Ray started it again by
    whoever wants a score."""

    def __init__(self, cfg: Config, name: str) -> None:
        self.cfg = cfg
        self._loading: asyncio.Future[RewardModel] | None = None
        watched(cfg, name)

    async def ready(self) -> None:
        """Raises ConfigError for what is no reward model."""
        await self._model()

    async def score(self, token_ids: np.ndarray) -> float:
        model = await self._model()
        return await model.score(token_ids)

    async def _model(self) -> RewardModel:
        if self._loading is None:
            from ...engines.reward_model import RewardModel

            self._loading = asyncio.ensure_future(asyncio.to_thread(RewardModel, self.cfg))
        return await asyncio.shield(self._loading)


class RewardModels:
    """The replicas, as long as the session. Raises ClusterFull, DeadlineMissed, or what a constructor raised."""

    def __init__(self, placement: PlacementGroup) -> None:
        self.placement, self.actors = placement, list[Any]()

    @classmethod
    async def start(cls, cfg: Config) -> RewardModels:
        replicas = cfg.reward.replicas
        room = reward_room(cfg)
        placement = await place(room, f"{replicas} reward models", cfg)
        self = cls(placement)
        try:
            for replica in range(replicas):
                options = {
                    "name": _name(replica),
                    "num_cpus": 1,
                    "num_gpus": room.num_gpus,
                    "max_restarts": RESTARTS,
                    "max_concurrency": 10_000,
                    "runtime_env": {"env_vars": worker_env(cfg)},
                    "scheduling_strategy": PlacementGroupSchedulingStrategy(placement),
                }
                self.actors.append(ray.remote(RewardModelActor).options(**options).remote(cfg, _name(replica)))
            for actor in self.actors:
                await within(
                    Deadline.of(cfg, "timeouts.start_s"), _result(actor.ready.remote()), "The start of a reward model"
                )
        except BaseException:
            await self.stop()
            raise
        return self

    async def stop(self) -> None:
        try:
            for actor in self.actors:
                ray.kill(actor)
        finally:
            remove_placement_group(self.placement)


@asynccontextmanager
async def rewarding(cfg: Config) -> AsyncIterator[None]:
    """The reward models of a session, if it has any."""
    models = await RewardModels.start(cfg) if cfg.reward.model_name_or_path else None
    try:
        yield
    finally:
        if models:
            await models.stop()


class RewardModelClient:
    """In a rollout actor: asks the replicas in turn."""

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        self._actors: dict[str, Any] = {}
        self._turn = itertools.cycle(range(cfg.reward.replicas))

    async def score(self, trajectory: Trajectory) -> float:
        """Raises RewardModelError when the replica dies, fails or misses reward.model_timeout_s."""
        name = _name(next(self._turn))
        ids = np.concatenate([trajectory.prompt_ids, trajectory.token_ids])
        try:
            if name not in self._actors:
                self._actors[name] = ray.get_actor(name)
            ref = self._actors[name].score.remote(ids)
            return await within(Deadline.of(self.cfg, "reward.model_timeout_s"), _result(ref), f"A score by {name}")
        except DeadlineMissed as e:
            raise RewardModelError(
                f"{e} It is overloaded or hangs; add reward.model_replicas, or raise the deadline."
            ) from e
        except (ray.exceptions.RayError, ValueError) as e:  # ValueError: no actor of that name
            happened = death(e)
            why = str(e) if happened is None else await end_of(self.cfg, name, happened)
            raise RewardModelError(f"{name} gave no score: {why}") from e


async def _result(ref: Any) -> Any:
    return await ref
