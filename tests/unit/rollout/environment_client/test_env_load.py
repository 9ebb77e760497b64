"""The benchmark's load generator counts what it says."""

from __future__ import annotations

import asyncio
import time

import psutil

from benchmarks.envs import load as load_module
from benchmarks.envs.load import closed_loop, started


async def test_callers_are_never_more_than_asked_for_and_every_failure_counts():
    inside = most = failures = 0

    async def ask(i: int) -> int:
        nonlocal inside, most, failures
        failures += i % 2
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.01)
        inside -= 1
        return i % 2

    for seconds in (0.2, 20.0):  # long enough for each caller to begin
        failures = 0
        start = time.perf_counter()
        load = await closed_loop(ask, 4, seconds)
        assert most <= 4 and load.failed == failures
        if failures > 0 and most == 4:
            break
    assert most == 4 and failures > 0
    assert 10 <= load.p50_ms <= load.p99_ms <= 1e3 * (time.perf_counter() - start)


def test_a_server_that_does_not_end_when_asked_is_killed(tmp_path, monkeypatch):
    (tmp_path / "stubborn.py").write_text(
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pathlib.Path(sys.argv[2]).write_text('1')\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(load_module, "END_S", 0.1)
    with started("stubborn") as (_, pid):
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)
