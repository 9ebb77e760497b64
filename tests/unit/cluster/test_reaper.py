"""What an actor started ends with it, though it is killed by SIGKILL. Real processes; an actor is Python here."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from openrlhf_tir.cluster import reaper

ACTOR = """
import subprocess, sys, time
sys.path.insert(0, sys.argv[1])
import reaper
assert not sys.argv[2:] or reaper.end_children_with_us()
worker = "import subprocess, time; w = subprocess.Popen(['sleep', '1000']); print(w.pid, flush=True); time.sleep(1000)"
engine = subprocess.Popen([sys.executable, "-c", worker])
print(engine.pid, flush=True)
time.sleep(1000)
"""
"""An engine process with a worker of its own: neither looks whether its parent is there."""


def actor(*flags: str) -> tuple[subprocess.Popen, list[psutil.Process]]:
    process = subprocess.Popen(
        [sys.executable, "-c", ACTOR, str(Path(reaper.__file__).parent), *flags], stdout=subprocess.PIPE, text=True
    )
    return process, [psutil.Process(int(process.stdout.readline())) for _ in range(2)]


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_engine_and_workers_end_with_an_actor_that_is_killed(how):
    process, started = actor("reaped")
    process.send_signal(how)
    process.wait()
    for child in started:
        child.wait(timeout=60)
    assert all(gone(child) for child in started)


def test_without_it_they_live_on():
    """What the test above would show if nothing were done."""
    process, started = actor()
    process.kill()
    process.wait()
    assert not any(gone(child) for child in started)
    for child in started:
        child.kill()


def test_whoever_started_the_actor_is_not_of_its_group():
    process, started = actor("reaped")
    us = psutil.Process()
    process.kill()
    process.wait()
    for child in started:
        child.wait(timeout=60)
    assert us.is_running()
