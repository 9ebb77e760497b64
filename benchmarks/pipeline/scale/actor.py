"""Processes of the scale benchmark: rollout actors and learner ranks as the controller sees them, around an engine and
a model that are emulated.

    RolloutActor -> ScaleActor     the real actor's remote methods, GroupRunner, episodes and queue; ScaleEngine; tools
                                   that sleep in the process
    LearnerRank  -> ScaleRank      the real rank's remote methods; EmulatedRank reads every group out of the object
                 store, as a real one does

What they do not have is what makes a process heavy: vLLM, a tokenizer, an HTTP endpoint, torch, DeepSpeed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from openrlhf_tir.cluster.learner_group import LearnerRank
from openrlhf_tir.cluster.rollout_actor import RolloutActor
from openrlhf_tir.config import Config
from openrlhf_tir.errors import WeightsUnverified
from openrlhf_tir.pushes import Canary
from openrlhf_tir.simulation.workload import Workload
from openrlhf_tir.types import Completion

from ..engine import ScriptedEngine

WEIGHTS = 1 << 16
"""Bytes of an emulated push: the file and its digest are real, what it costs to carry 3 GB is another benchmark's."""


def digest_of(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)


class ScaleEngine(ScriptedEngine):
    """ScriptedEngine with the rest of what a rollout actor asks of its engine."""

    broken: str | None = None
    push_pause_s = 0.0

    async def alive(self) -> None:
        """It computes nothing that could hang."""

    async def update_weights(
        self, path: Path, version: int, digest: str, canary: Canary | None = None, link: str | None = None
    ) -> list[Completion]:
        if (found := digest_of(path.read_bytes())) != digest:
            raise WeightsUnverified(f"{path} has digest {found}, {digest} was announced.")
        start = time.monotonic()
        await self.push(version)
        self.push_pause_s = time.monotonic() - start
        n = canary.max_tokens if canary else 0
        sampled = Completion(np.ones(n, np.int32), np.zeros(n, np.float32), np.full(n, version, np.int32), "", "length")
        return [sampled] * len(canary.prompt_ids) if canary else []

    async def confirm_weights(self, version: int) -> dict[str, float]:
        """Nothing waits for it: episodes of training take what was sampled at once."""
        return {"push_pause_s": self.push_pause_s}

    def stats(self) -> dict[str, float]:
        return self.model.stats()

    def drain_busy_intervals(self) -> list[tuple[float, float]]:
        return []


class ScaleActor(RolloutActor):
    """`workload` and `scale` are attributes of the class that `actor_class` makes."""

    workload: Workload
    scale: float

    async def start(self, cfg: Config, env_urls: Mapping[str, list[str]], tokens: Any) -> str:
        from openrlhf_tir.rollout.group_runner import GroupRunner
        from openrlhf_tir.rollout.request_queue import RequestQueue
        from openrlhf_tir.telemetry.trajectories import TrajectoryLog

        from ...rollout.parts import SleepingEnvs
        from ..parts import CharCodec, NoReward, judge_of

        self.cfg = cfg
        engine = ScaleEngine(self.workload, self.scale)
        self.engine = engine  # type: ignore[assignment]  # of the port it has what an actor without an endpoint needs
        self.request_queue = RequestQueue(engine, max_running=cfg.max_running, max_queue=1 << 20)
        self.envs = SleepingEnvs(self.workload.env_capacity)  # type: ignore[assignment]
        self.trajectory_log = TrajectoryLog(cfg.run_dir, self.name, 0.0)
        judge = judge_of(self.workload, self.workload.acceptance, lambda: engine.version)
        self.runner = GroupRunner(cfg, self.request_queue, CharCodec(), self.envs, NoReward(), judge, self.name)
        return ""

    async def pid(self) -> int:
        return os.getpid()

    async def set_env_urls(self, urls: Mapping[str, list[str]]) -> None:
        """Its tools are in the process."""

    async def heartbeat(self) -> list[str]:
        await self.engine.alive()
        return []

    async def stop(self) -> None:
        """Nothing is open."""


def actor_class(w: Workload, time_scale: float) -> type[ScaleActor]:
    class Emulated(ScaleActor):
        workload, scale = w, time_scale

    return Emulated


class EmulatedRank:
    """A rank that trains nothing: a step is to read the groups of the batch, a version is WEIGHTS bytes of it."""

    def __init__(self, rank: int) -> None:
        self.rank, self.version, self._written = rank, 0, dict[str, tuple[int, str]]()

    def step(self, batch: Any, groups: list[Any]) -> dict[str, float]:
        mine = [groups[b].valid[i] for (b, i), rank in batch.rank_of.items() if rank == self.rank]
        self.version += 1
        return {"updates": 1.0, "trained_groups": float(len(groups)), "rank0_trajectories": float(len(mine))}

    def publish(self, path: Path) -> str:
        data = np.random.default_rng(self.version).bytes(WEIGHTS)
        if self.rank == 0:
            path.write_bytes(data)
        return digest_of(data)

    def score(self, sequences: list[list[int]]) -> list[np.ndarray]:
        return [np.zeros(len(ids) - 1, np.float32) for ids in sequences]

    def save(self, directory: Path) -> None:
        data = str(self.version).encode()
        (directory / f"rank_{self.rank}").write_bytes(data)
        self._written = {str(directory / f"rank_{self.rank}"): (len(data), digest_of(data))}

    def written(self) -> dict[str, tuple[int, str]]:
        return self._written


class ScaleRank(LearnerRank):
    def start(self, cfg: Config, master_addr: str, master_port: int) -> int:
        self.inner = EmulatedRank(self.rank)  # type: ignore[assignment]
        return self.inner.version

    def step(self, batch: Any, *groups: Any) -> dict[str, float]:
        """What trains nothing has no utilisation of a GPU to tell."""
        return self.inner.step(batch, list(groups))
