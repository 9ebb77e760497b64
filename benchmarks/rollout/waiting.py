"""When does it pay to let ready trajectories wait for each other? One actor's rollout on the virtual clock, by how long
they wait.

    continuous    before EmulatedEngine: a request joins the running batch at the next step, as in vLLM
                  rollout.max_wait_ms
    static        before StaticBatchEngine: one batch at a time, until its longest answer is written
                  rollout.max_wait_ms
    env           before an environment that works on one batch at a time, 0.3 s + 5 ms per item (a retriever)
                  environment_client.step_batches

The engines decode by the workload's own curve. Emulated seconds, mean of several seeds: they differ by schedule."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np

from openrlhf_tir.protocol import EnvSchema, StepReply, StepRequest
from openrlhf_tir.rollout.environment_client.step_batches import StepBatches
from openrlhf_tir.simulation.virtual_loop import run as run_virtual
from openrlhf_tir.simulation.workload import Workload
from openrlhf_tir.types import Completion, Sampling

from ..pipeline.config import ENV, workload_config
from .parts import Actor, InProcessSession, SleepingEnvs, script_of

WAITS_MS = (0, 5, 20, 100, 500, 2000)
SEEDS = 5
BATCH_S, ITEM_S = 0.3, 0.005


class StaticBatchEngine:
    """What an engine without continuous batching does."""

    def __init__(self, w: Workload) -> None:
        self.w, self.script = w, script_of(w, 1.0)
        self.queue: list[tuple[int, asyncio.Future[None]]] = []
        self.running: asyncio.Task | None = None
        self.batches = 0

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        written = self.script(request_id)
        done = asyncio.get_running_loop().create_future()
        self.queue.append((written.tokens, done))
        if self.running is None:
            self.running = asyncio.create_task(self._work())
        await done
        ids, versions = np.ones(written.tokens, np.int32), np.zeros(written.tokens, np.int32)
        return Completion(ids, np.zeros(written.tokens, np.float32), versions, written.text, "stop", written.stop)

    async def _work(self) -> None:
        await asyncio.sleep(0)  # those that were flushed together are here now
        while self.queue:
            most = self.w.engine.max_running
            batch, self.queue = self.queue[:most], self.queue[most:]
            self.batches += 1
            longest = max(tokens for tokens, _ in batch)
            await asyncio.sleep(longest * len(batch) / self.w.engine.decode_rate(len(batch)))
            for _, done in batch:
                done.set_result(None)
        self.running = None


class BatchingEnv:
    """An environment that prefers batches and works on one at a time; steps reach it through StepBatches."""

    def __init__(self, wait_ms: float) -> None:
        self.one_at_a_time = asyncio.Lock()
        self.batches = StepBatches(self._schema, self._no_singles, self._work, max_wait_ms=wait_ms)
        self.numbers = itertools.count()

    async def _schema(self, server: str) -> EnvSchema:
        return EnvSchema(env=ENV, action="", capacity=1, prefers_batches=True)

    async def _no_singles(self, server: str, request: StepRequest, timeout_s: float) -> StepReply:
        raise AssertionError("a single step")

    async def _work(
        self, server: str, requests: Sequence[StepRequest], *, timeout_s: float
    ) -> AsyncGenerator[StepReply, None]:
        async with self.one_at_a_time:
            await asyncio.sleep(BATCH_S + ITEM_S * len(requests))
        for r in requests:
            yield StepReply(session_id=r.session_id, step_id=r.step_id, observation="x" * int(r.action.split()[1]))

    def session(self, env: str, task: dict[str, Any], *, seed: int) -> BatchingSession:
        return BatchingSession(self.batches, str(next(self.numbers)))


class BatchingSession(InProcessSession):
    def __init__(self, batches: StepBatches, name: str) -> None:
        self.batches, self.name = batches, name

    async def step(self, action: str, *, step_id: int) -> StepReply:
        return await self.batches.send(
            "env", StepRequest(session_id=self.name, step_id=step_id, action=action, deadline_s=3600), 3600.0
        )


def rollout_s(w: Workload, wait_ms: float, where: str) -> float:
    """Emulated seconds of one actor's rollout that waits so long before the engine or the environment."""

    async def main() -> float:
        envs = BatchingEnv(wait_ms) if where == "env" else SleepingEnvs(w.env_capacity)
        engine = StaticBatchEngine(w) if where == "static" else None
        cfg = workload_config(w, rollout={"max_wait_ms": 0 if where == "env" else wait_ms})
        actor = Actor(w, cfg, envs, 1.0, engine=engine)
        await asyncio.gather(*(actor.run(p) for p in range(w.prompts)))
        return asyncio.get_running_loop().time()

    return run_virtual(main())


def table(w: Workload, seeds: int = SEEDS) -> list[dict[str, float]]:
    """A row per wait: emulated seconds at full load (an actor's share of the batch) and at light (1 group of 4)."""
    full = w.with_batch(max(1, w.prompts // w.engine.count), w.samples_per_prompt, engines=1)
    light = w.with_batch(1, 4, engines=1)

    def mean_s(load: Workload, wait: float, where: str) -> float:
        return fmean(rollout_s(replace(load, seed=load.seed + i), wait, where) for i in range(seeds))

    return [
        {"max_wait_ms": wait}
        | {
            f"{where}_{name}_s": mean_s(load, wait, where)
            for where in WHERE
            for name, load in (("full", full), ("light", light))
        }
        for wait in WAITS_MS
    ]


WHERE = ("continuous", "static", "env")


def show(rows: list[dict[str, float]]) -> None:
    """Seconds per rollout."""
    print("wait, ms " + "".join(f"{where + ': full':>18}{'light':>8}" for where in WHERE))
    for r in rows:
        print(
            f"{r['max_wait_ms']:8d} "
            + "".join(f"{r[f'{where}_full_s']:18.1f}{r[f'{where}_light_s']:8.1f}" for where in WHERE)
        )


def best_wait_ms(rows: list[dict[str, float]], where: str) -> float:
    return min(rows, key=lambda r: r[f"{where}_full_s"])["max_wait_ms"]
