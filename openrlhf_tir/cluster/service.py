"""RolloutService: what is behind a rollout actor's HTTP routes: engine, episodes and rewards of the training."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from ..episodes.group_runner import EvalMode
from ..errors import ConfigError, RequestRefused
from ..serving.metrics import Exposition
from ..types import Completion, GroupKey, Sampling, Task, Trajectory

if TYPE_CHECKING:
    from ..serving.groups import GroupRequest
    from .rollout_actor import RolloutActor

HTTP_EPOCH = -2
"""Epoch of the keys of groups that came by HTTP: they are in no ledger."""


class RolloutService:
    def __init__(self, actor: RolloutActor) -> None:
        self.actor = actor
        self._numbers = itertools.count()
        self.agents = actor.agents
        self.bounds = actor.engine.bounds
        self._exposition = Exposition(actor.engine, actor.batcher, actor.envs, actor.agents)

    def admit(self, request: GroupRequest) -> None:
        """Raises ConfigError, QueueFull, and RequestRefused for a prompt that cannot fit, however it is tokenised."""
        longest = self.bounds.max_model_len * getattr(self.actor.runner.codec, "max_chars_per_token", math.inf)
        if len(request.prompt) > longest:
            raise RequestRefused(
                f"prompt: {len(request.prompt)} characters are more than {self.bounds.max_model_len} tokens can hold"
                f" ({longest:.0f} characters). Send a shorter one."
            )
        if self.actor.runner.cfg.train.agent_func_path is None:
            self.actor.envs.check(self._env(request))
        self.actor.batcher.admit(request.n or self.actor.runner.cfg.rollout.n_samples_per_prompt)

    def _env(self, request: GroupRequest) -> str:
        """The one that it names, or the only one. Raises ConfigError where there are several and it names none."""
        environments = self.actor.runner.environments
        if not request.env and len(environments) > 1:
            raise ConfigError(
                f"The group names no env, and this run has {', '.join(environments)}. Set env to one of them."
            )
        return request.env or next(iter(environments))

    async def run_group(self, request: GroupRequest) -> AsyncGenerator[Trajectory, None]:
        cfg = self.actor.runner.cfg
        task = Task(request.prompt, request.label, self._env(request), request.meta)
        temperature = cfg.rollout.temperature if request.temperature is None else request.temperature
        mode = EvalMode(request.n or cfg.rollout.n_samples_per_prompt, temperature)
        finished: asyncio.Queue[Trajectory] = asyncio.Queue()
        key = GroupKey(HTTP_EPOCH, next(self._numbers))
        running = asyncio.create_task(
            self.actor.runner.run(key, task, mode, on_trajectory=finished.put_nowait), name=f"http group {key}"
        )
        try:
            for _ in range(mode.n):
                nearest = asyncio.create_task(finished.get())
                await asyncio.wait({nearest, running}, return_when=asyncio.FIRST_COMPLETED)
                if not nearest.done() and finished.empty():
                    nearest.cancel()
                    break
                yield await nearest
            _, group = await running
            for late in (t for t in group.trajectories if t.failed == "deadline"):
                yield late
        finally:
            running.cancel()

    async def generate(self, token_ids: list[int], sampling: Sampling) -> Completion:
        return await self.actor.batcher.generate(token_ids, sampling, request_id=f"http/{next(self._numbers)}")

    def health(self) -> dict[str, Any]:
        engine = self.actor.engine
        return {
            "status": "broken" if engine.broken else "ok",
            "detail": engine.broken,
            "actor": self.actor.name,
            "version": engine.version,
        }

    def metrics(self) -> str:
        return self._exposition.text()

    async def pause(self) -> None:
        await self.actor.engine.pause()

    async def resume(self) -> None:
        await self.actor.engine.resume()
