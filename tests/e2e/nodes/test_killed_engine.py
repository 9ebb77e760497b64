"""An actor that is killed by SIGKILL takes vLLM's engine process along, and its replacement starts. Real Ray and vLLM,
with vLLM's multiprocessing on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from openrlhf_tir.cluster.engine_handle import spawn
from openrlhf_tir.cluster.ray_session import ray_session

from ..conftest import tiny_config
from ..support.engine_actor import EngineActor, engine_processes, workers
from ..support.tiny_model import save_tiny

ROOT = Path(__file__).parents[3]
GONE_S = 120


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("tensor_parallel_size", [1, 2])
async def test_no_process_of_an_engine_outlives_its_actor(tensor_parallel_size, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")  # as on GPUs: the engine is a process of its own
    cfg = tiny_config().model_copy(update={"run_dir": tmp_path / "run"})
    cfg.vllm.tensor_parallel_size = tensor_parallel_size
    cfg.actor.model_name_or_path = str(save_tiny(tmp_path / "model", seed=0))
    with ray_session(cfg):
        first = await spawn(EngineActor, 0, cfg, {}, lambda member, why: None)
        actor = psutil.Process(int(first.url))
        started = actor.children(recursive=True)
        assert engine_processes(actor) and len(workers(actor)) == tensor_parallel_size, [p.cmdline() for p in started]
        os.kill(actor.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(started, timeout=GONE_S)
        assert alive == []
        first.kill()
        second = await spawn(EngineActor, 1, cfg, {}, lambda member, why: None)
        await second.stop()
