"""One run at scale: start, steps of the real loop, one engine killed in the middle -> figures."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import psutil

from openrlhf_tir.cluster.engine_handle import EngineHandle
from openrlhf_tir.cluster.engine_pool import EnginePool
from openrlhf_tir.cluster.learner_group import LearnerGroup
from openrlhf_tir.cluster.ray_session import ray_session
from openrlhf_tir.config import Config
from openrlhf_tir.machine.process_memory import PssSampler
from openrlhf_tir.pipeline.checkpoints.checkpoint import Checkpoints
from openrlhf_tir.pipeline.ledger.ledger import Ledger
from openrlhf_tir.pipeline.loop import Pipeline
from openrlhf_tir.pipeline.observer import Observer
from openrlhf_tir.simulation.workload import Workload
from openrlhf_tir.types import GroupKey, GroupMeta, Task
from openrlhf_tir.weights.publisher import WeightPublisher

from ..config import workload_config
from ..parts import EndlessPrompts
from ..record import Record
from .actor import ScaleActor, ScaleRank, actor_class
from .host import Hosts
from .lost import Loss, loss_of

CANARY, TOLERANCE = [[1, 2, 3]], 0.1
BASE = 2048
"""Trajectories that controller CPU is told for."""


@dataclass(frozen=True, slots=True)
class Wanted:
    engines: int
    ranks: int
    steps: int
    """All of them; the first `warmup` are not counted."""
    warmup: int
    kill_after: int
    """Steps done when an engine is killed."""
    scale: float
    """Wall-clock seconds of an emulated one."""
    per_process: int = 1
    """Engines, or ranks, in a process; 1: each is a Ray actor, started as the product does, and killed by SIGKILL."""

    def config(self, w: Workload, run_dir: Path) -> Config:
        return workload_config(
            w,
            str(run_dir),
            vllm={"num_engines": self.engines},
            actor={"num_gpus_per_node": self.ranks},
            pipeline={"mode": "pipeline", "fast_lane": "off"},
            train={"max_steps": self.steps},
            ckpt={"save_steps": -1},
        )


class Noting(EnginePool):
    """The real pool; notes which actor an issue of a group was given to. `hosts`: where its actors are, if not in
    processes of their own."""

    def __init__(self, cfg: Config, actor_class: type[ScaleActor], hosts: Hosts | None) -> None:
        super().__init__(cfg, {}, actor_class)
        self.hosts = hosts
        self.ran_on: dict[GroupKey, str] = {}

    async def _spawn(self, index: int) -> EngineHandle:
        if self.hosts is None:
            return await super()._spawn(index)
        return await self.hosts.engine(self.actor_class, index, self.env_urls, self.fleet.mark_lost)

    async def _run_on(self, member: EngineHandle, key: GroupKey, task: Task, mode: Any) -> tuple[GroupMeta, Any]:
        self.ran_on[key] = member.owner
        return await super()._run_on(member, key, task, mode)


class Steps(Record):
    """Says each step, and sets `kill` when it is time."""

    def __init__(self, wanted: Wanted) -> None:
        super().__init__(wanted.steps)
        self.wanted, self.kill = wanted, asyncio.Event()

    def log(self, step: int, row: Mapping[str, float]) -> None:
        super().log(step, row)
        at = self.rows[-1]
        before = self.rows[-2] if len(self.rows) > 1 else at
        live = row.get("rolling", 0.0)
        print(
            f"  step {step}: {at.at - before.at:.1f} s, controller {at.cpu_s - before.cpu_s:.2f} s CPU, {live:.0f}"
            " groups rolling",
            flush=True,
        )
        if len(self.rows) >= self.wanted.kill_after:
            self.kill.set()


@dataclass(slots=True)
class Start:
    """Seconds, from nothing: until Ray's daemons were up, until everything was; CPU seconds of all processes meanwhile,
    and those of the controller."""

    ray_s: float
    all_s: float
    cpu_s: float
    controller_cpu_s: float


@dataclass(slots=True)
class Found:
    start: Start
    controller_cpu_s_per_2048: float
    by_step: list[float]
    """The same of each counted step."""
    step_s: float
    live: float
    """Trajectories under way, at the ends of the counted steps."""
    push_s: float
    rejoined_s: float | None
    """From the kill until another engine had the weights; None: not before the run ended."""
    peak_pss_gib: float
    loss: Loss
    per_process: int


def tree_cpu_s() -> float:
    """CPU seconds of this process, of Ray's daemons and workers, which descend from it, and of those that ended."""
    total = sum(os.times()[:4])
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


async def kill_one(pool: Noting) -> tuple[str, set[GroupKey]]:
    """The engine with most groups; who it was, and what it had. A process of its own gets SIGKILL."""
    members = list(pool.members)
    pids = await asyncio.gather(*(m.actor.pid.remote() for m in members))
    dead, pid = max(zip(members, pids, strict=True), key=lambda found: len(found[0].running))
    if pool.hosts is None:
        os.kill(pid, signal.SIGKILL)
    else:
        dead.actor.end()
    print(f"  {dead.name} of {len(members)} is killed with {len(dead.running)} groups", flush=True)
    return dead.owner, set(dead.running)


async def started(cfg: Config, w: Workload, wanted: Wanted, hosts: Hosts | None) -> tuple[Noting, LearnerGroup]:
    """Side by side, as services.py starts them."""
    pool = Noting(cfg, actor_class(w, wanted.scale), hosts)
    starting = (
        hosts.ranks(partial(ScaleRank, world_size=wanted.ranks))
        if hosts
        else LearnerGroup.start(cfg, rank_class=ScaleRank)
    )
    _, ranks = await asyncio.gather(pool.fleet.start(), starting)
    return pool, ranks


async def train(cfg: Config, wanted: Wanted, pool: Noting, ranks: LearnerGroup) -> tuple[Steps, Loss, float | None]:
    steps = Steps(wanted)
    publisher = WeightPublisher(ranks, pool.members, cfg.run_dir / "push", CANARY, tolerance=TOLERANCE)
    killed_at: float | None = None
    rejoined_s: float | None = None

    async def joined(member: EngineHandle, admit: Callable[[], None]) -> None:
        nonlocal rejoined_s
        await publisher.join(member, admit)
        if killed_at is not None:
            rejoined_s = time.monotonic() - killed_at

    async def kill() -> tuple[str, set[GroupKey]]:
        nonlocal killed_at
        await steps.kill.wait()
        killed_at = time.monotonic()
        return await kill_one(pool)

    pool.attach_prover(joined)
    ledger = Ledger(cfg.run_dir / "ledger.jsonl")
    pipeline = Pipeline(
        cfg,
        prompts=EndlessPrompts(),
        rollout=pool,
        learner=ranks,
        publisher=publisher,
        ledger=ledger,
        checkpoints=Checkpoints(cfg.run_dir / "ckpt", 1),
        observer=Observer(steps, steps, steps),
    )
    killing = asyncio.create_task(kill(), name="kill an engine")
    try:
        await pipeline.run()
        dead, running = await killing
    finally:
        killing.cancel()
        await publisher.close()
        ledger.close()
    return steps, loss_of(cfg.run_dir / "ledger.jsonl", pool.ran_on, dead, running), rejoined_s


async def measured(w: Workload, wanted: Wanted, run_dir: Path) -> Found:
    cfg = wanted.config(w, run_dir)
    begin, cpu_before, own_before = time.monotonic(), sum(os.times()[:4]), time.process_time()
    with ray_session(cfg), PssSampler(interval_s=10.0) as pss:
        ray_s = time.monotonic() - begin
        pool, ranks = await started(cfg, w, wanted, Hosts(cfg, wanted.per_process) if wanted.per_process > 1 else None)
        start = Start(ray_s, time.monotonic() - begin, tree_cpu_s() - cpu_before, time.process_time() - own_before)
        print(f"{wanted.engines} engines and {wanted.ranks} ranks are up: {start}", flush=True)
        try:
            steps, loss, rejoined_s = await train(cfg, wanted, pool, ranks)
        finally:
            await pool.stop()
            await ranks.stop()
    counted = steps.rows[wanted.warmup - 1 :]
    per = BASE / (w.prompts * w.samples_per_prompt)
    by_step = [per * (b.cpu_s - a.cpu_s) for a, b in pairwise(counted)]
    return Found(
        start=start,
        controller_cpu_s_per_2048=mean(by_step),
        by_step=by_step,
        step_s=(counted[-1].at - counted[0].at) / len(by_step),
        live=w.samples_per_prompt * mean(r.facts.get("rolling", 0.0) for r in counted),
        push_s=mean(r.facts.get("push_s", 0.0) for r in counted[1:]),
        rejoined_s=rejoined_s,
        peak_pss_gib=pss.peak_gib,
        loss=loss,
        per_process=wanted.per_process,
    )
