"""A learner rank that is killed: signal, peak memory and the node's are in the error and on record. Real Ray."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from openrlhf_tir.cluster import process_watch
from openrlhf_tir.cluster.learner_group import LearnerGroup
from openrlhf_tir.cluster.ray_session import ray_session
from openrlhf_tir.config import Config
from openrlhf_tir.errors import LearnerDied
from openrlhf_tir.telemetry.lost import FILE

from ..unit.cluster.test_process_watch import told_exactly
from .support.killed_ranks import IdleRank

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
HELD = 300 * MIB
SLEEPS = 4
"""Between two of them the watcher looks once; it may have slept now and then for another reason."""


def config(tmp_path: Path) -> Config:
    cfg = Config(run_dir=tmp_path / "run", actor={"num_gpus_per_node": 2})
    cfg.run_dir.mkdir()
    return cfg


@pytest.fixture(autouse=True)
def workers(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # Ray's workers unpickle IdleRank by its name
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")


@pytest.mark.long  # test_train.py kills a rank of a whole run; here it holds memory that is known
async def test_a_rank_killed_by_sigkill_is_named_with_its_signal_and_its_memory(tmp_path):
    cfg = config(tmp_path)
    with ray_session(cfg):
        ranks = await LearnerGroup.start(cfg, rank_class=IdleRank)
        try:
            pids = await ranks._call_all("pid")
            holding = asyncio.create_task(ranks._call("hold", HELD))
            await _until_it_holds(pids[1])
            os.kill(pids[1], signal.SIGKILL)
            with pytest.raises(LearnerDied) as told:
                await holding
        finally:
            await ranks.stop()
    assert str(pids[1]) in str(told.value)
    (entry,) = map(json.loads, (cfg.run_dir / FILE).read_text().splitlines())
    (end,) = entry["ends"]
    assert (entry["process"], end["pid"]) == ("learner-rank-1", pids[1])
    if told_exactly():
        assert end["signal"] == signal.SIGKILL and "SIGKILL" in str(told.value)
    assert HELD < end["peak_bytes"] < end["node_total_bytes"]


async def _until_it_holds(pid: int) -> None:
    """Wait until the rank has its memory and its watcher, which sleeps between two looks, has seen it."""
    while psutil.Process(pid).memory_info().rss < HELD:
        await asyncio.sleep(0.05)
    (watcher,) = (
        process
        for process in psutil.process_iter(["cmdline"])
        if {process_watch._WATCHER, str(pid)} <= set(process.info["cmdline"] or ())
    )
    slept = watcher.num_ctx_switches().voluntary
    while watcher.num_ctx_switches().voluntary < slept + SLEEPS:
        await asyncio.sleep(0.05)


async def _hold(cfg: Config) -> None:
    ranks = await LearnerGroup.start(cfg, rank_class=IdleRank)
    try:
        await ranks._call("hold", HELD)
    finally:
        await ranks.stop()


@pytest.mark.long  # Ray's memory monitor
async def test_a_rank_that_rays_memory_monitor_kills_is_named_with_the_monitors_figures_and_remedy(
    tmp_path, monkeypatch
):
    cfg = config(tmp_path)
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "200")
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.02")
    with ray_session(cfg), pytest.raises(LearnerDied) as told:
        await _hold(cfg)
    assert "RAY_memory_usage_threshold" in str(told.value)
    assert "train.max_tokens_per_gpu" in str(told.value)
