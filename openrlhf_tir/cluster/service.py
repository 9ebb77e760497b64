"""The work behind a rollout actor's HTTP routes: the same engine, episodes and rewards as in training."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, RequestRefused
from ..rollout.group_runner import EvalMode
from ..rollout.serving.metrics import Exposition
from ..types import Completion, GroupKey, Sampling, Task, Trajectory

if TYPE_CHECKING:
    from ..rollout.serving.groups import GroupRequest
    from .rollout_actor import RolloutActor

HTTP_EPOCH = -2
"""Epoch in the keys of groups that HTTP clients requested; they are in no ledger."""


class RolloutService:
    """Implements serving.app.RolloutService on a rollout actor."""

    def __init__(self, actor: RolloutActor) -> None:
        self.actor = actor
        self._numbers = itertools.count()
        self.agents = actor.agents
        self.bounds = actor.engine.bounds
        self._exposition = Exposition(actor.engine, actor.request_queue, actor.envs, actor.agents)

    def admit(self, request: GroupRequest) -> None:
        """See GroupService. Also raises RequestRefused for a prompt that cannot fit, however it is tokenised."""
        longest = self.bounds.max_model_len * getattr(self.actor.runner.codec, "max_chars_per_token", math.inf)
        if len(request.prompt) > longest:
            raise RequestRefused(
                f"prompt: {len(request.prompt)} characters are more than {self.bounds.max_model_len} tokens can hold"
                f" ({longest:.0f} characters). Send a shorter one."
            )
        if self.actor.runner.cfg.train.agent_func_path is None:
            self.actor.envs.urls.check(self._env(request))
        self.actor.request_queue.check_room(request.n or self.actor.runner.cfg.rollout.n_samples_per_prompt)

    def _env(self, request: GroupRequest) -> str:
        """Return the environment that a request names, or the only one.

        Raises:
            ConfigError: There are several, and the request names none.
        """
        environments = self.actor.runner.environments
        if not request.env and len(environments) > 1:
            raise ConfigError(
                f"The group names no env, and this run has {', '.join(environments)}. Set env to one of them."
            )
        return request.env or next(iter(environments))

    async def run_group(self, request: GroupRequest) -> AsyncGenerator[Trajectory, None]:
        """See GroupService."""
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
                next_trajectory = asyncio.create_task(finished.get())
                await asyncio.wait({next_trajectory, running}, return_when=asyncio.FIRST_COMPLETED)
                if not next_trajectory.done() and finished.empty():
                    next_trajectory.cancel()
                    break
                yield await next_trajectory
            _, group = await running
            for trajectory in group.trajectories:
                if trajectory.failed == "deadline":
                    yield trajectory
        finally:
            running.cancel()

    async def generate(self, token_ids: list[int], sampling: Sampling) -> Completion:
        """Continue token ids; the request waits in the actor's queue."""
        return await self.actor.request_queue.generate(token_ids, sampling, request_id=f"http/{next(self._numbers)}")

    def health(self) -> dict[str, Any]:
        """Return the state of the actor's engine."""
        engine = self.actor.engine
        return {
            "status": "broken" if engine.broken else "ok",
            "detail": engine.broken,
            "actor": self.actor.name,
            "version": engine.version,
        }

    def metrics(self) -> str:
        """Return the metrics as Prometheus text."""
        return self._exposition.text()

    async def pause(self) -> None:
        """Freeze all requests of the engine."""
        await self.actor.engine.pause()

    async def resume(self) -> None:
        """Let the frozen requests continue."""
        await self.actor.engine.resume()
