"""benchmarks.rollout.faults waits for others only so long."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.rollout.fault_parts import PATIENCE_S, patience
from openrlhf_tir.simulation.virtual_loop import run


def test_what_never_comes_ends_the_benchmark_and_is_named():
    async def waits() -> None:
        async with patience("500 live trajectories"):
            while True:
                await asyncio.sleep(0.02)

    async def main() -> None:
        with pytest.raises(RuntimeError, match=f"500 live trajectories: .* {PATIENCE_S:g} s"):
            await waits()
        assert asyncio.get_running_loop().time() == pytest.approx(PATIENCE_S)

    run(main())
