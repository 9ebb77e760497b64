"""Rollout actors as processes under Ray, with an emulated engine: killed amid 500 trajectories, scaled, moved."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from benchmarks.rollout.fault_actor import EmulatedActor
from benchmarks.rollout.fault_parts import PATIENCE_S, config, fault_server, sessions, set_fault, trained_on_a_fault
from openrlhf_tir.cluster.engine_pool import EnginePool
from openrlhf_tir.cluster.jobs.control import Control, apply
from openrlhf_tir.cluster.ray_session import ray_session
from openrlhf_tir.pipeline.checkpoints.checkpoint import Checkpoints
from openrlhf_tir.pipeline.ledger.ledger import Ledger, audit
from openrlhf_tir.pipeline.loop import Pipeline
from openrlhf_tir.pipeline.observer import Observer
from openrlhf_tir.ports import RolloutEngine
from openrlhf_tir.pushes import PublishReport
from openrlhf_tir.types import GroupKey, Task
from openrlhf_tir.waiting.deadlines import Deadline

from ..pipeline.fakes import FakeLearner, FakePrompts, MemoryMetrics, Silent

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parents[2]
STEPS, B, N = 6, 8, 32
"""With S = 3, 32 groups roll: 512 trajectories on each of two actors."""


class CheckedLearner(FakeLearner):
    """Looks at every trajectory that it is given."""

    def __init__(self, pool: EnginePool) -> None:
        super().__init__(seconds=0.05)
        self.pool, self.wrong = pool, []

    async def step(self, batch):
        for group in await self.pool.fetch([item.payload for item in batch.items]):
            self.wrong += trained_on_a_fault(group)
        return await super().step(batch)


class DirectPublisher:
    """Tells every actor its version; nothing is loaded."""

    def __init__(self, pool: EnginePool) -> None:
        self.pool, self.version = pool, 0
        pool.attach_prover(lambda member, admit: self.push(member, self.version))

    async def push(self, member, version: int) -> None:
        deadline = Deadline(600.0, "a test's")
        await member.call(RolloutEngine.update_weights, None, version, "", None, None, deadline=deadline)

    @asynccontextmanager
    async def exclusive_learner(self):
        yield

    async def publish(self, version, *, must_differ=False):
        self.version = version
        await asyncio.gather(*(self.push(m, version) for m in list(self.pool.members)), return_exceptions=True)
        return PublishReport(version, 0.0, "digest", 0.0)


@pytest.mark.slow
async def test_a_killed_actor_costs_no_prompt_and_a_run_can_grow_shrink_and_move(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # Ray's workers unpickle EmulatedActor by its name
    cfg = config(
        tmp_path,
        n=N,
        rollout={"batch_size": B, "max_wait_ms": 150, "group_deadline_s": 900},
        # 1,024 sessions at once: steps that wait take no call from sessions that are still to open
        env={"step_timeout_s": 900.0, "max_concurrency": 1024},
        vllm={"num_engines": 2},
        train={"max_steps": STEPS},
        pipeline={"max_staleness": 3, "depth": 4 * B},
    )
    with (
        fault_server(tmp_path, delay_s=0.05) as first,
        fault_server(tmp_path, delay_s=0.05) as second,
        ray_session(cfg),
    ):
        pool = await EnginePool(cfg, {"echo": [first]}, EmulatedActor).start()
        try:
            await killed_with_500_live(cfg, pool, first)
            await moved_and_scaled(pool, first, second)
        finally:
            await pool.stop()
        await closed(first)
        await closed(second)


async def closed(url: str, owner: str = "") -> None:
    """Until the server has no session of this owner, or none at all: they are closed in the background."""
    async with asyncio.timeout(PATIENCE_S):
        while [s for s in (await sessions(url))["open"] if s.startswith(owner)]:
            await asyncio.sleep(0.05)


async def idle(pool: EnginePool) -> None:
    """Until no actor has a call of a group that was cancelled."""
    async with asyncio.timeout(PATIENCE_S):
        while any([await member.actor.calls.remote() for member in pool.members]):
            await asyncio.sleep(0.05)


async def killed_with_500_live(cfg, pool: EnginePool, url: str) -> None:
    learner = CheckedLearner(pool)
    pipeline = Pipeline(
        cfg,
        prompts=FakePrompts(10_000),
        rollout=pool,
        learner=learner,
        publisher=DirectPublisher(pool),
        ledger=Ledger(cfg.run_dir / "ledger.jsonl"),
        checkpoints=Checkpoints(cfg.run_dir / "ckpt", 2),
        observer=Observer(MemoryMetrics(), Silent(), Silent()),
    )
    victim = pool.members[0]
    pid = await victim.actor.pid.remote()
    await set_fault(url, "wait")  # no step ends, so that sessions stay open however slow this machine is
    run = asyncio.create_task(pipeline.run())
    while len([s for s in (await sessions(url))["open"] if s.startswith(victim.owner)]) < 500:
        assert not run.done(), run.result()
        await asyncio.sleep(0.02)
    lost = set(victim.running)
    os.kill(pid, signal.SIGKILL)
    await set_fault(url, "")
    await run

    assert learner.wrong == [] and learner.version == STEPS
    report = audit(cfg.run_dir / "ledger.jsonl")
    assert report.errors == []
    trained = [key for _, key, _ in learner.trained]
    assert len(trained) == STEPS * B and max(Counter((k.epoch, k.prompt) for k in trained).values()) == 1
    assert not lost & set(trained), "a group of the dead actor was trained"
    assert {k.prompt for k in lost} & {k.prompt for k in trained}, "nothing of the dead actor was issued again"
    async with asyncio.timeout(PATIENCE_S):
        while len(pool.members) < 2:
            await asyncio.sleep(0.1)
    assert victim not in pool.members
    await closed(url, victim.owner)


async def moved_and_scaled(pool: EnginePool, first: str, second: str) -> None:
    async def roll(epoch: int, groups: int) -> set[str]:
        metas = await asyncio.gather(
            *(pool.run_group(GroupKey(epoch, i), Task(f"prompt {i} of {epoch}", "", "echo")) for i in range(groups))
        )
        assert all(meta.failed is None for meta, _ in metas)
        return {meta.actor for meta, _ in metas}

    await idle(pool)
    before = (await sessions(first))["resets"]
    await apply(Control(env_urls={"echo": [second]}), pool, token=None, serves={"echo": "echo"})
    await roll(1, 4)
    assert (await sessions(first))["resets"] == before and (await sessions(second))["resets"] == 4 * N

    await apply(Control(rollout_actors=3), pool, token=None, serves={"echo": "echo"})
    async with asyncio.timeout(PATIENCE_S):
        while len(pool.members) < 3:
            await asyncio.sleep(0.1)
    assert await roll(2, 6) == {"rollout-0", "rollout-1", "rollout-2"}
    assert (await sessions(first))["resets"] == before  # the new actor has the new map

    rolling = asyncio.create_task(roll(3, 6))
    while sum(len(member.running) for member in pool.members) < 6:
        assert not rolling.done()
        await asyncio.sleep(0)
    await apply(Control(rollout_actors=1), pool, token=None, serves={"echo": "echo"})
    assert len(await rolling) == 3  # they finished what they had
    async with asyncio.timeout(PATIENCE_S):
        while len(pool.members) > 1:
            await asyncio.sleep(0.1)
    assert await roll(4, 4) == {"rollout-0"}
