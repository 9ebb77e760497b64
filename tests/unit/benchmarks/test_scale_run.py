"""64 engines and 32 learner ranks under the real controller, without Ray, on a virtual clock: one engine dies in the
middle of a run."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.pipeline.scale import host as host_module
from benchmarks.pipeline.scale.run import Wanted, started, train
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.simulation.workload import SEED_WORKLOAD, Workload
from openrlhf_tir.types import TrainBatch

from .in_this_process import LocalHosts

pytestmark = [pytest.mark.extended, pytest.mark.slow]
ENGINES, RANKS, STEPS, PROMPTS = 64, 32, 5, 64


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was put into the store."""
    stored: list[Any] = []

    def put(value: Any) -> Any:
        stored.append(value)
        return value

    async def placed(*args: Any) -> None: ...

    monkeypatch.setattr(host_module, "place", placed)
    for name in ("engine_room", "learner_room", "remove_placement_group"):
        monkeypatch.setattr(host_module, name, lambda *args: None)
    monkeypatch.setattr("ray.cancel", lambda ref: ref.cancel())
    monkeypatch.setattr("ray.put", put)
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
    return stored


def test_one_of_64_engines_dies_and_its_own_groups_are_all_that_is_issued_again(tmp_path, without_ray):
    w = Workload.read(SEED_WORKLOAD).with_batch(PROMPTS, 2, engines=ENGINES)
    wanted = Wanted(ENGINES, RANKS, STEPS, warmup=1, kill_after=2, scale=1.0, per_process=8)
    cfg = wanted.config(w, tmp_path)

    async def go():
        pool, ranks = await started(cfg, w, wanted, LocalHosts(cfg, wanted.per_process))
        pool.fleet.on_lost = lambda member: None  # no environment server has sessions of it
        before = {m.owner for m in pool.members}
        steps, loss, rejoined_s = await train(cfg, wanted, pool, ranks)
        after = {m.owner for m in pool.members}
        await pool.stop()
        return steps, loss, rejoined_s, before, after

    steps, loss, rejoined_s, before, after = run(go())
    batches = [value for value in without_ray if isinstance(value, TrainBatch)]
    assert len(batches) == STEPS, "once for all ranks"
    assert all(item.payload is None for batch in batches for item in batch.items)
    assert loss.errors == [] and loss.trained == STEPS * PROMPTS
    assert loss.only_its_own, loss
    assert loss.again == loss.running, "all that it had, and nothing that was given to it since"
    assert (len(before), len(after), len(after - before)) == (ENGINES, ENGINES, 1), "another took its place"
    assert rejoined_s is not None and len(steps.rows) == STEPS
