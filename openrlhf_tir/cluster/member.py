"""Member: one rollout actor as the controller holds it: its process, its reserved resources, the groups that it runs."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ..config import Config
from ..errors import EngineError, EngineGone
from ..machine import gpu_count
from ..types import Completion, GroupKey
from ..weights.verify import Canary
from .ray_session import place, worker_env

log = logging.getLogger(__name__)
STOP_TIMEOUT_S = 20


@dataclass(eq=False)
class Member:
    """What is in `RolloutPool.members` was proved to hold the current weights. `on_death(member, why)` is told once it is no more."""

    index: int
    actor: Any
    placement: PlacementGroup
    on_death: Callable[[Member, str], None]
    url: str = ""
    running: set[GroupKey] = field(default_factory=set)
    load: dict[str, float] = field(default_factory=dict)
    """Sequences running and waiting, preemptions; as of the last group that ended on it."""
    env_servers: set[str] = field(default_factory=set)
    """Where it may hold sessions, processes behind a front port included; as of the last heartbeat."""

    @property
    def name(self) -> str:
        return f"rollout-{self.index}"

    @property
    def owner(self) -> str:
        """Begins the ids of its environment sessions."""
        return self.actor._actor_id.hex()

    async def call(self, ref: Any) -> Any:
        """Await a result. Raises EngineGone when the process or its engine is no more, and has it replaced."""
        try:
            return await ref
        except (ray.exceptions.RayActorError, EngineError) as e:
            lost = f"{self.name} died with {len(self.running)} groups: {e}"
            self.on_death(self, str(e))
            raise EngineGone(lost) from e

    async def update_weights(self, path, version: int, digest: str, canary: Canary | None = None) -> list[Completion]:
        return await self.call(self.actor.update_weights.remote(path, version, digest, canary))

    async def proved(self, version: int) -> None:
        await self.call(self.actor.proved.remote(version))

    async def canary(self, prompts: list[list[int]], max_tokens: int, seed: int) -> list:
        return await self.call(self.actor.canary.remote(prompts, max_tokens, seed))

    async def discard(self, why: str) -> None:
        """Its weights are unknown: the process is ended with all that it sampled, and another started."""
        self.on_death(self, why)

    async def heartbeat(self) -> None:
        """Raises EngineGone."""
        self.env_servers |= set(await self.call(self.actor.heartbeat.remote()))

    async def set_env_urls(self, urls: Mapping[str, list[str]]) -> None:
        await self.call(self.actor.set_env_urls.remote(urls))

    async def stop(self) -> None:
        """In good order, or killed when it does not answer within STOP_TIMEOUT_S."""
        await asyncio.wait([asyncio.ensure_future(self.actor.stop.remote())], timeout=STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        ray.kill(self.actor)
        remove_placement_group(self.placement)


async def spawn(actor_class: type, index: int, cfg: Config, model: str, env_urls: Mapping[str, list[str]], on_death: Callable[[Member, str], None]) -> Member:
    """Reserve, start, load the model. Raises ConfigError when there is no room, EngineGone when it died, what its `start` raised."""
    tp, gpu = cfg.vllm.tensor_parallel_size, gpu_count() > 0
    placement = await place([{"CPU": 1} | ({"GPU": 1} if gpu else {})] * tp, "STRICT_PACK", f"rollout engine {index}")
    actor = (
        ray.remote(actor_class)
        .options(
            num_cpus=1,
            # With one GPU the engine runs here; with more, vLLM's own workers take the bundles.
            num_gpus=1 if gpu and tp == 1 else 0,
            max_concurrency=10_000,
            runtime_env={"env_vars": worker_env(cfg)},
            scheduling_strategy=PlacementGroupSchedulingStrategy(placement, placement_group_capture_child_tasks=True),
        )
        .remote(index)
    )
    member = Member(index, actor, placement, on_death)
    try:
        member.url = await member.call(actor.start.remote(cfg, model, env_urls, os.environ.get(cfg.env.token_env)))
    except BaseException:
        member.kill()
        raise
    return member
