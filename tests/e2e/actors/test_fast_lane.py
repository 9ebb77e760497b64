"""Responses that move between two rollout actors under Ray while they are sampled: real processes, the deterministic
engine, an environment by HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.rollout.fault_parts import fault_server
from miniatures.toy.model import save_model
from openrlhf_tir.cluster.engine_pool import EnginePool
from openrlhf_tir.cluster.lanes import PoolLanes
from openrlhf_tir.cluster.ray_session import ray_session
from openrlhf_tir.config import Config
from openrlhf_tir.types import Group, GroupKey, Task

ROOT = Path(__file__).parents[3]
SAMPLES = 4


def config(work: Path) -> Config:
    return Config(
        run_dir=work / "run",
        actor={"model_name_or_path": str(work / "init"), "num_gpus_per_node": 1},
        ds={"param_dtype": "fp32", "attn_implementation": "eager"},
        data={"max_len": 192},
        env={"name": "echo"},
        rollout={
            "engine": "torch",
            "n_samples_per_prompt": SAMPLES,
            "max_new_tokens": 128,
            "top_k": 1,
            "group_deadline_s": 300,
        },
        pipeline={"fast_lane": 1},
        vllm={"num_engines": 2},
        reward={"name": "tests.e2e.support.parity_reward:parity"},
    )


async def rolled(pool: EnginePool, lanes: PoolLanes, attempt: int, *, moves: bool) -> Group:
    """The group of one prompt; with `moves` every response goes to the other actor once, as soon as it is seen."""
    rolling = asyncio.create_task(pool.run_group(GroupKey(0, 0, attempt), Task("prompt", "0", "echo")))
    while moves and not rolling.done():
        for response in await lanes.under_way():
            if not response.moves and response.tokens:
                await lanes.move(response, next(name for name in lanes.engines if name != response.home))
    meta, payload = await rolling
    assert meta.failed is None and meta.failures == {}, meta.why
    return (await pool.fetch([payload]))[0]


async def tokens_sampled(pool: EnginePool) -> list[float]:
    """So far, by each actor."""
    return [(await m.actor.stats.remote())["tokens_generated"] for m in pool.members]


@pytest.mark.long  # two actors import torch and load a model
async def test_a_response_that_moves_between_actors_has_the_tokens_of_one_that_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    save_model(tmp_path / "init", seed=0)
    cfg = config(tmp_path)
    cfg.run_dir.mkdir()
    with fault_server(tmp_path, delay_s=0.01) as server, ray_session(cfg):
        pool = await EnginePool(cfg, {"echo": [server]}).start()
        try:
            lanes = PoolLanes(pool)
            stayed = await rolled(pool, lanes, 0, moves=False)
            before = await tokens_sampled(pool)
            moved = await rolled(pool, lanes, 1, moves=True)
            sampled = [now - then for now, then in zip(await tokens_sampled(pool), before, strict=True)]
        finally:
            await pool.stop()
    assert pool.lane_moves > 0
    assert min(sampled) > 0, "the group has one home: what the other actor sampled was moved there"
    assert len(moved.trajectories) == SAMPLES
    for a, b in zip(stayed.trajectories, moved.trajectories, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist()
        assert (a.finish_reason, a.stop_reason, a.reward) == (b.finish_reason, b.stop_reason, b.reward)
