"""One rollout actor of three whose process stands still (SIGSTOP): Ray, HTTP environments, the deterministic engine."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from benchmarks.rollout.fault_parts import fault_server
from miniatures.toy.model import save_model
from openrlhf_tir.cluster.engine_pool import EnginePool
from openrlhf_tir.cluster.ray_session import ray_session
from openrlhf_tir.cluster.rollout_actor import RolloutActor
from openrlhf_tir.config import Config
from openrlhf_tir.errors import EngineGone
from openrlhf_tir.types import GroupKey, GroupMeta, Task
from openrlhf_tir.waiting.deadlines import Deadline

ROOT = Path(__file__).parents[2]
GROUPS = 12


class WithPid(RolloutActor):
    async def pid(self) -> int:
        return os.getpid()


def config(work: Path) -> Config:
    return Config(
        run_dir=work / "run",
        actor={"model_name_or_path": str(work / "init"), "num_gpus_per_node": 1},
        ds={"param_dtype": "fp32", "attn_implementation": "eager"},
        data={"max_len": 192},
        env={"name": "echo"},
        rollout={
            "engine": "torch",
            "n_samples_per_prompt": 2,
            "max_new_tokens": 16,
            "group_deadline_s": 300,
        },
        vllm={"num_engines": 3},
        reward={"name": "tests.e2e.support.parity_reward:parity"},
    )


@pytest.mark.long  # three actors import torch and load a model, and a fourth takes one's place
async def test_the_work_of_a_stopped_actor_is_done_by_the_others_and_its_process_does_not_stay(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # Ray's workers unpickle WithPid by its name
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    save_model(tmp_path / "init", seed=0)
    cfg = config(tmp_path)
    cfg.run_dir.mkdir()
    with fault_server(tmp_path, delay_s=0.01) as server, ray_session(cfg):
        pool = EnginePool(cfg, {"echo": [server]}, WithPid)
        # The silence alone: pushes to healthy engines and their answers have their ordinary time on a starved machine.
        pool.fleet.unresponsive = Deadline(20.0, "the silence of this test")
        pool.fleet.heartbeat_s = 2.0
        await pool.start()
        try:
            stopped = pool.members[1]
            process = psutil.Process(await stopped.actor.pid.remote())
            given_up: list[int] = []

            async def group(i: int) -> GroupMeta:
                """As the pipeline does: issued again when its actor is gone."""
                for attempt in range(5):
                    try:
                        return (await pool.run_group(GroupKey(0, i, attempt), Task(f"prompt {i}", "0", "echo")))[0]
                    except EngineGone:
                        given_up.append(i)
                raise AssertionError(f"group {i} was given up five times")

            rolling = [asyncio.create_task(group(i)) for i in range(GROUPS)]
            await asyncio.sleep(0)  # each is at an actor now
            process.send_signal(signal.SIGSTOP)
            metas = await asyncio.gather(*rolling)

            assert all(m.failed is None for m in metas)
            assert given_up, "nothing was at the stopped actor"
            assert {metas[i].actor for i in given_up} <= {"rollout-0", "rollout-2"}, (
                "what hung went back to where it hung"
            )
            assert stopped not in pool.members
            async with asyncio.timeout(120):
                while len(pool.members) < 3:
                    await asyncio.sleep(0.2)
                while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    await asyncio.sleep(0.2)
        finally:
            await pool.stop()
