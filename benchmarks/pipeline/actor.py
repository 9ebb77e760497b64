"""Processes of the emulated cluster: a rollout actor with one engine, and a learner rank. Real but for what sleeps.

RolloutProcess.run_group(run, ...)     GroupRunner -> episodes -> queue -> emulated engine; tools by HTTP
RolloutProcess.push(version)           pause, sleep as long as a push takes, go on with the prefixes computed again, or
                                       kept
RolloutProcess.move, under_way         the fast lane's (cluster/peer_engine.py): the real ones
RolloutProcess.generate_all(...)       the baseline's full-batch generation: no tools, no overlap
LearnerProcess.step(...)               reads the groups from the object store, counts how old their tokens are, sleeps
                                       the rest
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np

from openrlhf_tir.cluster.peer_engine import MovesResponses
from openrlhf_tir.config import Config
from openrlhf_tir.rollout.environment_client.client import EnvClient
from openrlhf_tir.rollout.group_runner import GroupRunner
from openrlhf_tir.rollout.request_queue import RequestQueue
from openrlhf_tir.rollout.sequence_migration import SequenceMigration
from openrlhf_tir.simulation.workload import PROMPT_TOKENS, Acceptance, Workload
from openrlhf_tir.types import Group, GroupKey, GroupMeta, Sampling, Task

from .engine import ScriptedEngine
from .parts import CharCodec, NoReward, judge_of


class RolloutProcess(MovesResponses):
    """Async Ray actor. `give_up` what the run before left rolling, then `begin` one on a fresh engine."""

    def __init__(self, index: int, workload: Workload, env_url: str) -> None:
        self.name, self.workload, self.env_url = f"rollout-{index}", workload, env_url
        self.envs: EnvClient | None = None
        self.running: set[asyncio.Task] = set()
        self.run = 0

    async def give_up(self, run: int) -> None:
        """What is still rolling of the run before, and what of it comes later. Everywhere before anybody begins the
        next run, `run`: names come again."""
        self.run = run
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)

    async def begin(self, cfg: Config, scale: float, acceptance: Acceptance) -> None:
        self.cfg = cfg
        if self.envs is not None:
            await self.envs.close()
        self.scale = scale
        self.engine = ScriptedEngine(self.workload, scale, keeps_kv=cfg.pipeline.keeps_kv)
        self.envs = EnvClient.of(cfg.environments, {cfg.env.name: self.env_url}, owner=self.name)
        self.request_queue = RequestQueue(self.engine, max_running=cfg.max_running, max_queue=1 << 20)
        judge = judge_of(self.workload, acceptance, lambda: self.engine.version)
        migration = (
            None if cfg.pipeline.fast_lane == "off" else SequenceMigration(self.request_queue, self.engine.text_of)
        )
        self.runner = GroupRunner(
            cfg, self.request_queue, CharCodec(), self.envs, NoReward(), judge, self.name, migration=migration
        )

    async def run_group(
        self, run: int, key: GroupKey, task: Task
    ) -> tuple[tuple[GroupMeta, dict[str, float]] | None, Group | None]:
        """Two Ray results: metadata with the load here, and the payload; nothing for a group of a run that was cut,
        which came after the end."""
        if run != self.run:
            return None, None
        me = asyncio.current_task()
        assert me is not None, "a coroutine runs in a task"
        self.running.add(me)
        try:
            meta, group = await self.runner.run(key, task)
            return (meta, self.load()), group
        finally:
            self.running.discard(me)

    def load(self) -> dict[str, float]:
        """The engine's, with what waits in front of it."""
        stats = self.engine.model.stats()
        return {
            "running": stats["running"],
            "waiting": stats["waiting"] + self.request_queue.waiting,
            "width": float(self.workload.engine.max_running),
            "preemptions": stats["preemptions"],
        }

    async def generate_all(self, key_of: Sequence[tuple[GroupKey, int]], turn: int) -> None:
        """The turn's segment of all these trajectories at once; returns when the longest is written."""

        def context(key: GroupKey, sample: int) -> int:
            script = self.workload.script(key, sample)
            return PROMPT_TOKENS + sum(script.segments[:turn]) + sum(script.observations[:turn])

        await asyncio.gather(
            *(
                self.engine.generate(range(context(k, i)), Sampling(1 << 20), request_id=f"{k}#{i}/{turn}")
                for k, i in key_of
            )
        )

    async def push(self, version: int) -> dict[str, float]:
        """Returns the engine's totals: they are wanted once per step."""
        await self.engine.push(version)
        return self.engine.model.stats()


class LearnerProcess:
    """Ray actor: one rank."""

    def step(self, version: int, until: float, *groups: Group) -> tuple[Counter[int], float]:
        """Ends at `until` (monotonic, one clock per host): a learner's step begins with reading its batch, which has
        come out of the object store by now. Returns (tokens by age in updates, by how many seconds the emulation's own
        work made it later)."""
        ages: Counter[int] = Counter()
        for group in groups:
            for t in group.valid:
                found, counts = np.unique(
                    np.concatenate([s.versions for s in t.segments if s.source == "model"]), return_counts=True
                )
                ages.update({int(version - v): int(n) for v, n in zip(found, counts, strict=True)})
        late = time.monotonic() - until
        time.sleep(max(0.0, -late))
        return ages, late
