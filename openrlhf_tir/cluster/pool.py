"""RolloutPool: the rollout actors as one `Rollout`. Least-loaded routing; a dead actor is replaced and gets the current weights.

A replacement is routed to only after a full push and canary (`on_join`). Groups of the dead actor raise EngineError: the pipeline
issues them again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ..config import Config
from ..errors import EngineError, EngineGone, PipelineError
from ..machine import gpu_count
from ..types import Group, GroupKey, GroupMeta, Task
from .ray_session import place, worker_env
from .rollout_actor import RolloutActor

log = logging.getLogger(__name__)
STOP_TIMEOUT_S = 20


@dataclass(eq=False)
class Member:
    """One actor. What is in `RolloutPool.members` is healthy and was proved to hold the current weights."""

    index: int
    actor: Any
    placement: PlacementGroup
    url: str = ""
    running: set[GroupKey] = field(default_factory=set)
    on_death: Callable[[Member], None] = lambda member: None

    @property
    def name(self) -> str:
        return f"rollout-{self.index}"

    async def call(self, ref: Any) -> Any:
        """Await a result. Raises EngineGone when the process or its engine is no more, and has it replaced."""
        try:
            return await ref
        except (ray.exceptions.RayActorError, EngineError) as e:
            self.on_death(self)
            raise EngineGone(f"{self.name} died with {len(self.running)} groups: {e}") from e

    async def update_weights(self, path, version: int, digest: str) -> None:
        await self.call(self.actor.update_weights.remote(path, version, digest))

    async def canary(self, prompts: list[list[int]], max_tokens: int, seed: int) -> list:
        return await self.call(self.actor.canary.remote(prompts, max_tokens, seed))


class RolloutPool:
    def __init__(self, cfg: Config, model: str, env_urls: Mapping[str, list[str]]) -> None:
        self.cfg, self.model, self.env_urls = cfg, model, env_urls
        self.members: list[Member] = []
        self.on_join: Callable[[Member], Awaitable[None]] | None = None
        self._reviving: set[asyncio.Task] = set()
        self._broken: BaseException | None = None

    @classmethod
    async def start(cls, cfg: Config, model: str, env_urls: Mapping[str, list[str]]) -> RolloutPool:
        self = cls(cfg, model, env_urls)
        self.members = list(await asyncio.gather(*(self._spawn(i) for i in range(cfg.vllm.num_engines))))
        return self

    async def _spawn(self, index: int) -> Member:
        tp, gpu = self.cfg.vllm.tensor_parallel_size, gpu_count() > 0
        placement = await place([{"CPU": 1} | ({"GPU": 1} if gpu else {})] * tp, "STRICT_PACK", f"rollout engine {index}")
        actor = (
            ray.remote(RolloutActor)
            .options(
                num_cpus=1,
                # With one GPU the engine runs here; with more, vLLM's own workers take the bundles.
                num_gpus=1 if gpu and tp == 1 else 0,
                max_concurrency=10_000,
                runtime_env={"env_vars": worker_env(self.cfg)},
                scheduling_strategy=PlacementGroupSchedulingStrategy(placement, placement_group_capture_child_tasks=True),
            )
            .remote(index)
        )
        member = Member(index, actor, placement, on_death=self._replace)
        member.url = await member.call(actor.start.remote(self.cfg, self.model, self.env_urls, os.environ.get(self.cfg.env.token_env)))
        return member

    async def run_group(self, key: GroupKey, task: Task, mode=None) -> tuple[GroupMeta, Any]:
        """Raises EngineGone when the actor died or none is up yet, PipelineError when a dead one could not be replaced."""
        if not self.members:
            if self._broken and not self._reviving:
                raise PipelineError(f"No rollout actor is left, and a new one did not start: {self._broken}") from self._broken
            raise EngineGone("No rollout actor is up; one is being started.")
        member = min(self.members, key=lambda m: len(m.running))
        member.running.add(key)
        try:
            ref, payload = member.actor.run_group.options(num_returns=2).remote(key, task, mode)
            meta = await member.call(ref)
        finally:
            member.running.discard(key)
        if meta.failed == EngineError.reason:  # the process lives, its engine does not
            self._replace(member)
            raise EngineGone(f"The engine of {member.name} is broken.")
        return meta, payload

    def _replace(self, member: Member) -> None:
        if member not in self.members:
            return
        self.members.remove(member)
        log.warning("%s died; starting another in its place", member.name)
        _remove(member)
        task = asyncio.create_task(self._revive(member.index), name=f"revive {member.name}")
        self._reviving.add(task)
        task.add_done_callback(self._revived)

    async def _revive(self, index: int) -> None:
        fresh = await self._spawn(index)
        if self.on_join:
            await self.on_join(fresh)
        self.members.append(fresh)

    def _revived(self, task: asyncio.Task) -> None:
        self._reviving.discard(task)
        if not task.cancelled() and task.exception():
            self._broken = task.exception()
            log.error("a rollout actor could not be replaced: %s", self._broken)

    async def fetch(self, payloads: Sequence[Any]) -> list[Group]:
        return list(await asyncio.gather(*payloads))

    async def store(self, group: Group) -> Any:
        return ray.put(group)

    def where(self, key: GroupKey) -> str:
        return next((f"on {m.name}, env {self.cfg.env.name}" for m in self.members if key in m.running), "waiting for an actor")

    def engine_stats(self) -> dict[str, float]:
        return {"actors": float(len(self.members))}

    async def busy_intervals(self) -> dict[str, list[tuple[float, float]]]:
        """Per actor: when at least one of its requests was decoding, since the last call; epoch seconds."""
        members = list(self.members)
        found = await asyncio.gather(*(m.call(m.actor.busy_intervals.remote()) for m in members), return_exceptions=True)
        return {m.name: spans for m, spans in zip(members, found, strict=True) if not isinstance(spans, BaseException)}

    async def stop(self) -> None:
        """Ends the actors; one that does not answer within STOP_TIMEOUT_S is killed."""
        for task in self._reviving:
            task.cancel()
        stopping = [asyncio.ensure_future(m.actor.stop.remote()) for m in self.members]
        if stopping:
            await asyncio.wait(stopping, timeout=STOP_TIMEOUT_S)
        for m in self.members:
            _remove(m)


def _remove(member: Member) -> None:
    ray.kill(member.actor)
    remove_placement_group(member.placement)
