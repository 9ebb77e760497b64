"""The emulated cluster's responses go on at other engines, by the real lanes: Ray actors, migration, HTTP tools."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.pipeline.cluster import cluster
from benchmarks.pipeline.parts import Plan
from benchmarks.pipeline.run import run
from openrlhf_tir.simulation.workload import SEED_WORKLOAD, Workload

pytestmark = [pytest.mark.slow, pytest.mark.long]


async def test_responses_move_to_the_lane_and_everything_is_trained_within_the_bound():
    """16 x 8 on four small engines, one of them the lane; a learner that is never waited for."""
    w = Workload.read(SEED_WORKLOAD).with_batch(16, 8, engines=4)
    small = replace(w.engine, max_running=32, decode_tokens_per_s=((1.0, 60.0), (8.0, 300.0), (32.0, 700.0)))
    plan = Plan("pipeline", 10.0, 0.05, 6, 2, w.acceptance, 4, 80, fast_lane=1, early="on", kv="keep")
    with cluster(replace(w, engine=small), 1) as c:
        f = await run(c, plan)
        told = c.engine_stats()
    assert c.lane_moves > 0 and f.trained_groups == 4 * 16
    assert f.staleness_max <= 4 and f.discarded_groups == 0
    assert told["actors"] == 4 and 0 < told["width"] <= 4 * 32
