"""Reward models: one process per replica. Rollout actors find them by name and ask them for the scores of trajectories.

Ray restarts a replica that dies. A request to it meanwhile fails its sample (RewardModelError), whose group is issued
again; it never becomes a reward.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from ray.util.placement_group import remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ...config import Config
from ...errors import DeadlineMissed, RewardModelError
from ...types import Trajectory
from ...waiting.deadlines import Deadline, answer_deadline, within
from ..lost import end_of, watched
from ..nodes import reward_room
from ..ray_faults import death
from ..ray_session import place, worker_env

if TYPE_CHECKING:
    from ...engines.reward_model import RewardModel

RESTARTS = 20
"""How often Ray restarts a replica in a run. More deaths are not accidents."""


def _name(replica: int) -> str:
    return f"reward-model-{replica}"


class RewardModelActor:
    """The process of a replica. It loads the model at the first request: `ready`, or after a restart a score."""

    def __init__(self, cfg: Config, name: str) -> None:
        self.cfg = cfg
        self._loading: asyncio.Future[RewardModel] | None = None
        watched(cfg, name)

    async def ready(self) -> None:
        """Load the model. Raises ConfigError if it is not a reward model."""
        await self._model()

    async def score(self, token_ids: np.ndarray) -> float:
        """Return the score of prompt and response, [tokens] int32."""
        model = await self._model()
        return await model.score(token_ids)

    async def _model(self) -> RewardModel:
        if self._loading is None:
            from ...engines.reward_model import RewardModel

            self._loading = asyncio.ensure_future(asyncio.to_thread(RewardModel, self.cfg))
        return await asyncio.shield(self._loading)


@asynccontextmanager
async def rewarding(cfg: Config) -> AsyncIterator[None]:
    """Run the reward models of a session, if it has any, for the time of the block.

    Raises:
        ClusterFull: The cluster has no room for them.
        DeadlineMissed: One of them did not start in time. What a constructor raised is raised as it is.
    """
    if not cfg.reward.model_name_or_path:
        yield
        return
    room = reward_room(cfg)
    placement = await place(room, f"{cfg.reward.replicas} reward models", cfg)
    actors: list[Any] = []
    try:
        for replica in range(cfg.reward.replicas):
            options = {
                "name": _name(replica),
                "num_cpus": 1,
                "num_gpus": room.num_gpus,
                "max_restarts": RESTARTS,
                "max_concurrency": 10_000,
                "runtime_env": {"env_vars": worker_env(cfg)},
                "scheduling_strategy": PlacementGroupSchedulingStrategy(placement),
            }
            actors.append(ray.remote(RewardModelActor).options(**options).remote(cfg, _name(replica)))
        for actor in actors:
            await within(Deadline.of(cfg, "timeouts.start_s"), actor.ready.remote(), "The start of a reward model")
        yield
    finally:
        try:
            for actor in actors:
                ray.kill(actor)
        finally:
            remove_placement_group(placement)


class RewardModelClient:
    """Asks the replicas in turn; used in a rollout actor."""

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        self._actors: dict[str, Any] = {}
        self._next_replica = itertools.cycle(range(cfg.reward.replicas))

    async def score(self, trajectory: Trajectory) -> float:
        """Return the score of a trajectory.

        Raises:
            RewardModelError: The replica died, failed, or did not answer in time.
        """
        name = _name(next(self._next_replica))
        ids = np.concatenate([trajectory.prompt_ids, trajectory.token_ids])
        try:
            if name not in self._actors:
                self._actors[name] = ray.get_actor(name)
            ref = self._actors[name].score.remote(ids)
            return await within(answer_deadline(self.cfg), ref, f"A score by {name}")
        except DeadlineMissed as error:
            raise RewardModelError(
                f"{error} It is overloaded or hangs; add reward.model_replicas, or raise timeouts.push_s up to 600."
            ) from error
        except (ray.exceptions.RayError, ValueError) as error:  # ValueError if there is no actor of that name.
            happened = death(error)
            why = str(error) if happened is None else await end_of(self.cfg, name, happened)
            raise RewardModelError(f"{name} gave no score: {why}") from error
