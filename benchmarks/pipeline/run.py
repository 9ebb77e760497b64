"""Runs on the emulated cluster: a plan -> figures. The modes go through the real loop; the slow baseline is here."""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from openrlhf_tir.cluster.lanes import PoolLanes
from openrlhf_tir.pipeline.checkpoints.checkpoint import Checkpoints
from openrlhf_tir.pipeline.lane.keeper import TICK_S, fast_lane
from openrlhf_tir.pipeline.ledger.ledger import Ledger
from openrlhf_tir.pipeline.loop import Pipeline
from openrlhf_tir.pipeline.observer import Observer
from openrlhf_tir.types import GroupKey

from .cluster import Cluster, EmulatedLearner, EmulatedPublisher
from .parts import SYNC_ROLLOUT, EndlessPrompts, Plan
from .record import ModeFigures, Record

LOOK_S = 0.5
"""Wall-clock seconds between two looks of the fast lane, at least: each asks every actor for thousands of responses."""


async def run(c: Cluster, plan: Plan) -> ModeFigures:
    return await (run_sync_rollout(c, plan) if plan.mode == SYNC_ROLLOUT else run_mode(c, plan))


async def run_mode(c: Cluster, plan: Plan) -> ModeFigures:
    """A mode of the pipeline. It is cut after plan.steps, with groups in flight: what it has in store then was in store
    at the start too."""
    await c.begin(plan)
    record = Record(plan.steps)
    learner = EmulatedLearner(c.learner_actor, plan.learner_s, plan.scale, c.workload.prompts)
    with tempfile.TemporaryDirectory() as scratch:
        ledger = Ledger(Path(scratch, "ledger.jsonl"))
        cfg = plan.config(c.workload, scratch)
        pipeline = Pipeline(
            cfg,
            prompts=EndlessPrompts(),
            rollout=c,
            learner=learner,
            publisher=EmulatedPublisher(c.actors, record.totals),
            ledger=ledger,
            checkpoints=Checkpoints(Path(scratch, "ckpt"), 1),
            observer=Observer(record, record, record),
        )
        w = c.workload
        lane = fast_lane(
            cfg,
            pipeline.scheduler,
            PoolLanes(c),
            longest=w.longest,
            slots=w.engine.max_running,
            tick_s=max(TICK_S * plan.scale, LOOK_S),
        )
        async with lane:
            running, ended = (
                asyncio.create_task(pipeline.run(), name=plan.name),
                asyncio.create_task(record.ended.wait()),
            )
            await asyncio.wait({running, ended}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        ledger.close()
    if learner.overruns:
        print(
            f"  {plan.name}: {learner.overruns} learner steps took longer to emulate than they should last;"
            " use a larger --time-scale",
            flush=True,
        )
    return record.figures(plan, c.workload, learner.ages)


async def run_sync_rollout(c: Cluster, plan: Plan) -> ModeFigures:
    """The seed work's slow way: generate for the whole batch, run its tool calls one after another, generate on, ...,
    train, push.

    The serial calls are slept in one piece, without HTTP: the baseline pays for none of the emulation's own overhead.
    """
    await c.begin(plan)
    w, record = c.workload, Record(plan.steps)
    publisher = EmulatedPublisher(c.actors, record.totals)
    await publisher.publish(0)
    for step in range(plan.steps):
        keys = [(GroupKey(0, step * w.prompts + p), i) for p in range(w.prompts) for i in range(w.samples_per_prompt)]
        scripts = [w.script(k, i) for k, i in keys]
        start = time.monotonic()
        for turn in range(w.tool_calls + 1):
            await asyncio.gather(
                *(a.generate_all.remote(keys[e :: len(c.actors)], turn) for e, a in enumerate(c.actors))
            )
            if turn < w.tool_calls:
                await asyncio.sleep(plan.scale * sum(s.latencies_s[turn] for s in scripts))
        rolled = time.monotonic()
        await asyncio.sleep(plan.learner_s * plan.scale)
        trained = time.monotonic()
        await publisher.publish(step + 1)
        tokens = sum(s.model_tokens for s in scripts)
        phases = {"replay_wait_s": rolled - start, "step_s": trained - rolled, "push_s": time.monotonic() - trained}
        record.log(step, {**phases, "trained_tokens": tokens, "trained_groups": w.prompts})
    return record.figures(plan, w, {})
