"""The last engine dies at the worst moment: no lock is held over a step, a drain and a join together."""

from __future__ import annotations

import asyncio

import pytest

from openrlhf_tir.pipeline.ledger.ledger import audit
from openrlhf_tir.simulation.virtual_loop import run

from .random_runs.world import World, WorldLearner, live, pipeline_in

MODES = [("sync", 0), ("one_step", 1), ("pipeline_drain", 2), ("pipeline", 2)]


@pytest.mark.parametrize(("mode", "S"), MODES)
@pytest.mark.parametrize("fault", ["kill_all", "hang"])
@pytest.mark.parametrize("during", ["step", "drain", "push"])
def test_the_only_engine_is_lost_in_a_step_a_drain_or_a_push_and_the_run_goes_on(tmp_path, mode, S, fault, during):
    """The drain waits for groups, the groups wait for an engine, the engine joins: with a single engine all at once."""
    world = World(1, actors=1, latency=lambda r: r.uniform(0.5, 4))
    learner = WorldLearner(S)
    p = pipeline_in(
        world,
        learner,
        tmp_path,
        prompts=24,
        sections={"rollout": {"batch_size": 2}, "pipeline": {"mode": mode, "max_staleness": S or None}},
    )
    struck = []

    async def strike() -> None:
        while p.version < 3 or p.observer.current_phase != during:
            await asyncio.sleep(0.01)
            if p.version > 8:  # a mode without such a phase
                return
        struck.append(p.version)
        getattr(world, fault)(0)

    async def both() -> None:
        watching = asyncio.create_task(strike())
        await live(world, p)
        watching.cancel()

    run(both())
    report = audit(p.scheduler.ledger.path)
    assert report.errors == report.open == [] and report.finished
    assert sorted(learner.lineage) == sorted(report.trained) == [(0, i) for i in range(24)]
    assert learner.stale == []
    assert struck or (during == "drain" and mode in ("pipeline", "sync", "one_step"))
