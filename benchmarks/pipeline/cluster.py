"""The emulated cluster as the pipeline's ports: real Ray actors, HTTP tools and object store around engines and a
learner that sleep.

    with cluster(workload) as c:          one rollout actor per engine, one learner actor, environment servers
        await c.begin(plan)               fresh engines at version 0
        Pipeline(..., rollout=c, learner=c.learner, publisher=c.publisher)

Real: the main loop and all else in the controller, Ray calls, payloads of full size, group runners, episodes, turn
protocol, queue, EnvClient, environment servers. Emulated, by sleeping: decoding (engine_model.py), the tool's work, the
learner's step, a weight push."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from openrlhf_tir.pipeline.router import Router
from openrlhf_tir.pushes import PublishReport
from openrlhf_tir.simulation.parts import WeightlessLearner
from openrlhf_tir.simulation.workload import Workload
from openrlhf_tir.types import Group, GroupKey, GroupMeta, StepReport, Task, TrainBatch

from ..envs.load import started
from .actor import LearnerProcess, RolloutProcess
from .parts import Plan

OBJECT_STORE = 2 << 30


class EmulatedLearner(WeightlessLearner):
    """`ages[step]`: trained tokens of a step by their age in updates. `overruns`: steps whose emulation took longer
    than the step. A part that is accumulated takes its share of a step, by groups, and the step the rest."""

    def __init__(self, actor: Any, learner_s: float, scale: float, batch_groups: int) -> None:
        self.actor, self.seconds, self.version, self.batch_groups = actor, learner_s * scale, 0, batch_groups
        self.ages: defaultdict[int, Counter[int]] = defaultdict(Counter)
        self.overruns = 0
        self._begun: list[TrainBatch] = []

    async def accumulate(self, part: TrainBatch) -> None:
        self._begun.append(part)
        await self._work(part, self.seconds * len(part.items) / self.batch_groups)

    async def step(self, batch: TrainBatch) -> StepReport:
        start, parts = time.monotonic(), [*self._begun, batch]
        groups = sum(len(part.items) for part in parts)
        await self._work(batch, self.seconds * max(0.0, 1 - (groups - len(batch.items)) / self.batch_groups))
        self._begun.clear()
        self.version += 1
        return StepReport(
            self.version,
            {"trained_groups": float(groups)},
            time.monotonic() - start,
            sum(part.num_tokens for part in parts),
        )

    async def _work(self, batch: TrainBatch, seconds: float) -> None:
        until = time.monotonic() + seconds
        ages, late = await self.actor.step.remote(self.version, until, *(item.payload for item in batch.items))
        self.ages[self.version] += ages
        self.overruns += late > 0 < seconds


class EmulatedPublisher:
    """A push to all engines at once. `on_totals` gets their summed counters, once per push."""

    def __init__(self, actors: Sequence[Any], on_totals: Callable[[dict[str, float]], None]) -> None:
        self.actors, self.on_totals = actors, on_totals

    @asynccontextmanager
    async def exclusive_learner(self) -> AsyncIterator[None]:
        yield

    async def publish(self, version: int, *, must_differ: bool = False) -> PublishReport:
        start = time.monotonic()
        totals: dict[str, float] = defaultdict(float)
        for stats in await asyncio.gather(*(a.push.remote(version) for a in self.actors)):
            for name, value in stats.items():
                totals[name] += value
        totals["busy_s"] /= len(self.actors)
        self.on_totals(dict(totals))
        return PublishReport(version, time.monotonic() - start, "", 0.0)


@dataclass(frozen=True, slots=True)
class Member:
    """As cluster/engine_handle.py, without deadlines: nothing hangs here but what waits for two busy cores."""

    name: str
    actor: Any

    unresponsive = None

    async def call(self, method: Callable[..., Any], *args: Any, deadline: None) -> Any:
        return await getattr(self.actor, method.__name__).remote(*args)


class Cluster:
    """Rollout of the pipeline, with the router and the lanes of cluster/engine_pool.py."""

    def __init__(self, workload: Workload, env_url: str) -> None:
        self.workload, self.env_url = workload, env_url
        rollout = ray.remote(RolloutProcess).options(num_cpus=0, max_concurrency=10_000)
        self.members = [
            Member(f"rollout-{i}", rollout.remote(i, workload, env_url)) for i in range(workload.engine.count)
        ]
        self.actors = [member.actor for member in self.members]
        self.learner_actor = ray.remote(LearnerProcess).options(num_cpus=0).remote()
        self.run = 0
        self.router: Router[Member] = Router()
        self.lane_engines = self.lane_moves = 0.0

    async def begin(self, plan: Plan) -> None:
        cfg = plan.config(self.workload, tempfile.gettempdir())
        self.run += 1
        await asyncio.gather(*(a.give_up.remote(self.run) for a in self.actors))
        await asyncio.gather(*(a.begin.remote(cfg, plan.scale, plan.acceptance) for a in self.actors))
        self.router, self.lane_engines, self.lane_moves = Router(), 0.0, 0.0
        for member in self.members:
            self.router.join(member.name, member)

    async def run_group(self, key: GroupKey, task: Task) -> tuple[GroupMeta, Any]:
        async with self.router.place(str(key), self.workload.samples_per_prompt) as member:
            ref, payload = member.actor.run_group.options(num_returns=2).remote(self.run, key, task)
            meta, load = await ref
            self.router.record_report(member.name, load)
            return meta, payload

    async def fetch(self, payloads: Sequence[Any]) -> list[Group]:
        return list(await asyncio.gather(*payloads))

    async def store(self, group: Group) -> Any:
        return ray.put(group)

    def where(self, key: GroupKey) -> str:
        return "in the emulated cluster"

    def engine_stats(self) -> dict[str, float]:
        """The figures of all engines."""
        return self.router.total_stats()


@contextmanager
def cluster(workload: Workload, env_processes: int):
    """Ray of our own and environment servers that together run env.capacity calls at once."""
    # else the actors would yield to the controller
    os.environ |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_worker_niceness": "0"}
    flags = (
        "--workers",
        str(workload.env_capacity // env_processes),
        "--max-queue",
        "100000",
        "--max-sessions",
        "1000000",
    )
    # a run that is cut leaves calls behind, which the server reports
    log = Path(tempfile.gettempdir(), "benchmark_pipeline_env.log")
    with started("benchmarks.pipeline.env", *flags, "--processes", str(env_processes), log=log) as (url, _):
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=OBJECT_STORE,
            logging_level="warning",
        )
        try:
            yield Cluster(workload, url)
        finally:
            ray.shutdown()
