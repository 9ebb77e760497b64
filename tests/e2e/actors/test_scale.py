"""Eight engines and four learner ranks as processes under the real controller; one engine's process is killed in the middle."""

from __future__ import annotations

import pytest

from benchmarks.pipeline.scale.__main__ import facts
from benchmarks.pipeline.scale.run import Wanted, measured
from openrlhf_tir.simulation.workload import SEED_WORKLOAD, Workload

pytestmark = pytest.mark.slow


async def test_an_engines_death_costs_its_own_groups_and_every_prompt_is_trained_once(tmp_path):
    w = Workload.read(SEED_WORKLOAD).with_batch(16, 4, engines=8)
    found = await measured(w, Wanted(engines=8, ranks=4, steps=4, warmup=1, kill_after=2, scale=0.02), tmp_path)
    loss = found.loss
    assert loss.errors == [] and loss.trained == 4 * 16
    assert loss.only_its_own, loss
    assert {"start_s", "controller_cpu_s_per_2048", "lost_groups_of_others", "audit_errors"} <= facts(found).keys()
