"""What is said and kept of a process that a run has lost."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from openrlhf_tir.cluster import lost
from openrlhf_tir.cluster.lost import ENDS, end_of, end_of_child, watched
from openrlhf_tir.cluster.ray_faults import death
from openrlhf_tir.config import Config
from openrlhf_tir.telemetry.lost import FILE, lost_processes

GIB = 1 << 30


@pytest.fixture
def cfg(tmp_path) -> Config:
    return Config(run_dir=tmp_path)


def leave(cfg: Config, name: str, **facts) -> None:
    """A watcher's record."""
    record = {
        "name": name,
        "pid": 71,
        "command": "python",
        "signal": signal.SIGKILL,
        "code": None,
        "by_kernel_for_memory": False,
        "peak_bytes": 5 * GIB,
        "node": "node-7",
        "node_used_bytes": 10 * GIB,
        "node_total_bytes": 24 * GIB,
        "time": time.time(),
        **facts,
    }
    directory = cfg.run_dir / ENDS
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.json").write_text(json.dumps(record))


def kept(cfg: Config) -> list[dict]:
    return [json.loads(line) for line in (cfg.run_dir / FILE).read_text().splitlines()]


async def test_a_process_that_is_killed_is_told_with_signal_and_memory_and_kept(cfg, monkeypatch):
    monkeypatch.setattr(lost, "RECORD_S", 300.0)  # the watcher may have no core
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    watched(cfg, "learner-rank-1", process.pid)
    process.kill()
    process.wait()
    told = await end_of(cfg, "learner-rank-1", "its process died")
    assert told.startswith("its process died") and str(process.pid) in told
    (entry,) = kept(cfg)
    assert (entry["process"], entry["why"]) == ("learner-rank-1", "its process died")
    assert [end["pid"] for end in entry["ends"]] == [process.pid]
    assert entry["ends"][0]["signal"] in (signal.SIGKILL, None)  # None: a kernel before 6.15 may not tell


async def test_the_record_of_a_dead_process_is_waited_for_although_that_of_a_descendant_is_there(cfg, monkeypatch):
    monkeypatch.setattr(lost, "RECORD_S", 300.0)
    leave(cfg, "rollout-0.81", pid=81)
    asyncio.get_running_loop().call_later(0.2, leave, cfg, "rollout-0")
    told = await end_of(cfg, "rollout-0", "its process died")
    assert "71" in told and "81" in told
    assert not [*(cfg.run_dir / ENDS).iterdir()]


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
async def test_what_died_together_is_told_together_although_its_nodes_clock_differs(cfg, ahead_s):
    there = time.time() + ahead_s
    leave(cfg, "rollout-0", time=there)
    leave(cfg, "rollout-0.81", pid=81, time=there - 1)
    leave(cfg, "rollout-0.82", pid=82, time=there - 3000)  # a worker that was killed for its deadline
    told = await end_of(cfg, "rollout-0", "its process died")
    assert "71" in told and "81" in told and "82" not in told


async def test_many_calls_that_fail_at_one_death_get_one_answer_and_one_line(cfg, monkeypatch):
    monkeypatch.setattr(lost, "AT_ONCE_S", 3600.0)
    leave(cfg, "rollout-0")
    told = await asyncio.gather(*(end_of(cfg, "rollout-0", f"call {i} failed") for i in range(5)))
    told.append(await end_of(cfg, "rollout-0", "a later call failed"))
    assert len(set(told)) == 1 and "SIGKILL" in told[0]
    assert len(kept(cfg)) == 1
    assert not [*(cfg.run_dir / ENDS).iterdir()], "what was told is not told of a successor"


async def test_a_successor_that_dies_too_is_lost_again(cfg, monkeypatch):
    monkeypatch.setattr(lost, "AT_ONCE_S", 0.0)
    leave(cfg, "rollout-0")
    await end_of(cfg, "rollout-0", "its process died")
    leave(cfg, "rollout-0", pid=72)
    assert "72" in await end_of(cfg, "rollout-0", "its process died")
    assert [entry["ends"][0]["pid"] for entry in kept(cfg)] == [71, 72]


async def test_a_successor_that_was_started_and_died_at_once_is_lost_again(cfg, monkeypatch):
    monkeypatch.setattr(lost, "AT_ONCE_S", 3600.0)
    monkeypatch.setattr(lost, "watch", lambda *_, **__: True)
    for code in (3, 4):
        watched(cfg, "env-server")
        leave(cfg, "env-server", signal=None, code=code)
        assert f"code {code}" in await end_of(cfg, "env-server", f"it ended with code {code}")
    assert len(kept(cfg)) == 2


@pytest.mark.parametrize(
    ("facts", "for_memory"),
    [
        ({}, False),  # killed with 10 of 24 GiB in use
        ({"node_used_bytes": 23 * GIB}, True),
        ({"node_used_bytes": 23 * GIB, "signal": signal.SIGSEGV}, False),
        ({"by_kernel_for_memory": True}, True),
        ({"by_kernel_for_memory": True, "node_used_bytes": 23 * GIB, "signal": None, "code": 1}, False),
    ],
)
async def test_the_remedy_for_memory_is_told_where_memory_may_be_the_reason(cfg, facts, for_memory):
    leave(cfg, "learner-rank-0", **facts)
    told = await end_of(cfg, "learner-rank-0", "its process died")
    assert ("train.max_tokens_per_gpu" in told) == for_memory
    assert "5.00 GiB" in told and "node-7" in told


async def test_an_engine_whose_own_process_was_killed_is_told_and_a_worker_killed_long_ago_is_not(cfg):
    leave(cfg, "rollout-0.81", pid=81, command="VLLM::EngineCore")
    leave(cfg, "rollout-0.82", pid=82, time=time.time() - 3600)
    told = await end_of(cfg, "rollout-0", "the engine is dead", certain=False)
    assert "81" in told and "VLLM::EngineCore" in told and "82" not in told


async def test_an_error_that_killed_nobody_is_told_as_it_is_and_not_kept(cfg, monkeypatch):
    monkeypatch.setattr(lost, "DESCENDANT_S", 0.0)
    (cfg.run_dir / ENDS).mkdir(parents=True)
    assert await end_of(cfg, "rollout-0", "a prompt is too long.", certain=False) == "a prompt is too long"
    assert not (cfg.run_dir / FILE).exists()


async def test_a_reward_worker_is_told_by_its_pid(cfg):
    leave(cfg, "rollout-0.91", pid=91)
    leave(cfg, "rollout-0.92", pid=92)
    told = await end_of_child(cfg, "rollout-0", 91, "Abnormal termination")
    assert "91" in told and "92" not in told
    assert (cfg.run_dir / ENDS / "rollout-0.92.json").exists()


async def test_a_death_nobody_watched_is_kept_without_an_end(cfg):
    await end_of(cfg, "learner-rank-0", "its node died")
    assert kept(cfg)[0]["ends"] == []
    assert len([*lost_processes(cfg.run_dir)]) == 1


def test_a_file_that_was_edited_and_one_that_is_not_there_end_no_report(tmp_path: Path):
    assert [*lost_processes(tmp_path)] == []
    (tmp_path / FILE).write_text('{"time": 0}\nno json\n')
    assert len([*lost_processes(tmp_path)]) == 2


HEAD = (
    "Memory on the node (IP: 10.0.0.1, ID: ab) was 22.90GB / 23.54GB (0.973), which exceeds the memory usage threshold"
    " of 0.95; Ray killed 1 worker(s) based on the killing policy: [the newest]; "
)
REMEDY = (
    "Refer to the documentation on how to address the out of memory issue: https://docs.ray.io/x.html. Consider"
    " provisioning more memory on this node. To adjust the kill threshold, set the environment variable"
    " `RAY_memory_usage_threshold` when starting Ray."
)


def test_the_memory_monitors_figures_and_its_remedy_are_whole_and_its_table_is_short():
    import ray

    rows = "".join(f"{pid}\t{pid}.50\t/venv/bin/python {'x' * 400}\n" for pid in range(1, 11))
    message = f"{HEAD}Top 10 memory users: PID\tMEM(GB)\tCOMMAND\n{rows}{REMEDY}"
    told = death(ray.exceptions.OutOfMemoryError(message))
    assert told is not None and "\n" not in told
    assert HEAD.strip() in told and REMEDY in told
    assert "3 3.50 /venv" in told and "4 4.50 /venv" not in told


def test_a_message_of_the_monitor_in_another_form_is_not_cut():
    import ray

    message = f"{HEAD}{'something new ' * 100}{REMEDY}"
    told = death(ray.exceptions.OutOfMemoryError(message))
    assert told is not None and HEAD.strip() in told and REMEDY in told
