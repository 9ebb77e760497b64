"""benchmarks.rollout.overhead ends when what it measures fails."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.pipeline.parts import CharCodec
from benchmarks.rollout import overhead
from openrlhf_tir.simulation.workload import SEED_WORKLOAD, Workload


async def test_a_group_that_fails_ends_the_measurement_instead_of_leaving_it_to_wait_for_turns(monkeypatch):
    async def fails(self, prompt: int) -> None:
        raise RuntimeError("the server is gone")

    monkeypatch.setattr(overhead.Actor, "run", fails)
    workload = overhead.roomy(Workload.read(SEED_WORKLOAD), 100.0, live=overhead.GROUP)
    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="the server is gone")):
        async with asyncio.timeout(60):
            await overhead.ours(workload, 100, CharCodec(), live=overhead.GROUP)
