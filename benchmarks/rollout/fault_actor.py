"""EmulatedActor: a rollout actor's process, for its faults. Groups, episodes and client are real; the engine sleeps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import ray

from openrlhf_tir.cluster.rollout_actor import RolloutActor
from openrlhf_tir.cluster.tokens import Tokens
from openrlhf_tir.config import Config
from openrlhf_tir.pushes import Canary
from openrlhf_tir.rollout.environment_client.client import EnvClient
from openrlhf_tir.telemetry.trajectories import TrajectoryLog
from openrlhf_tir.types import Completion

from .fault_parts import SleepingEngine, runner


class EmulatedActor(RolloutActor):
    """A rollout actor's process without a model. `cfg.rollout.max_wait_ms` is the engine's time per segment."""

    async def start(self, cfg: Config, env_urls: Mapping[str, list[str]], tokens: Tokens) -> str:
        owner = ray.get_runtime_context().get_actor_id()
        self.envs = EnvClient.of(cfg.environments, env_urls, token=tokens.env, owner=owner)
        self.runner = runner(cfg, self.envs, cfg.rollout.max_wait_ms / 1000, self.name)
        assert isinstance(self.runner.engine, SleepingEngine)
        self.emulated = self.runner.engine
        self.engine = self.emulated  # type: ignore[assignment]  # of the port it has what is asked of this actor
        self.trajectory_log = TrajectoryLog(cfg.run_dir, self.name, cfg.logger.trajectories)
        return "http://emulated"

    async def pid(self) -> int:
        return os.getpid()

    async def calls(self) -> float:
        """Return the number of sessions and of calls to environments."""
        counts = self.envs.stats().items()
        return sum(n for name, n in counts if name.startswith(("sessions/", "in_flight/", "waiting/")))

    def load(self) -> dict[str, float]:
        return {}

    async def update_weights(
        self, path: Path, version: int, digest: str, canary: Canary | None = None, link: str | None = None
    ) -> list[Completion]:
        self.emulated.version = version
        return []

    async def stop(self) -> None:
        await self.envs.close()
