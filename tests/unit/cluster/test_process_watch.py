"""How a process ended is known to its watcher: signal or code, peak memory, that of its descendants."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from openrlhf_tir.cluster import process_watch
from openrlhf_tir.cluster.process_watch import (
    _KernelKills,
    kernel_kills,
    node_memory,
    peak_rss_bytes,
    pss_bytes,
    records,
    watch,
)

MIB = 1 << 20
PATIENCE_S = 60.0
HOLDS = "import sys, time; held = bytearray(120 << 20); print('up', flush=True); time.sleep(1000)"


def started(program: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.first_line = process.stdout.readline()  # type: ignore[attr-defined]
    return process


def record(directory: Path, name: str) -> dict:
    """The record, as soon as it is there."""
    path = directory / f"{name}.json"
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return json.loads(path.read_text())


def told_exactly() -> bool:
    """Linux 6.15 and later tell how a process ended; before, it may be missed."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(c for c in minor if c.isdigit()))) >= (6, 15)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_process_that_is_killed_is_on_record_with_its_signal_and_its_peak(tmp_path, number):
    process = started(HOLDS)
    assert watch(tmp_path, "learner-rank-0", process.pid)
    process.send_signal(number)
    process.wait()
    told = record(tmp_path, "learner-rank-0")
    assert told["pid"] == process.pid
    assert told["signal"] == number or not told_exactly()
    assert told["code"] is None
    assert 120 * MIB <= told["peak_bytes"] < 400 * MIB
    assert 0 < told["node_used_bytes"] <= told["node_total_bytes"]
    assert not told["by_kernel_for_memory"]


def test_a_process_that_ends_by_itself_is_on_record_with_its_code(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "input(); raise SystemExit(3)"], stdin=subprocess.PIPE)
    assert watch(tmp_path, "env-server", process.pid)
    process.communicate(b"\n")
    told = record(tmp_path, "env-server")
    assert told["signal"] is None
    assert told["code"] == 3 or not told_exactly()


@pytest.mark.slow
def test_a_descendant_that_is_killed_is_on_record_beside_the_process(tmp_path):
    parent = started(
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {HOLDS!r}], stdout=subprocess.PIPE, text=True)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
        "time.sleep(1000)\n"
    )
    child = int(parent.first_line)
    assert watch(tmp_path, "rollout-0", parent.pid)
    descendant = tmp_path / f"rollout-0.{child}.json"
    deadline = time.monotonic() + PATIENCE_S
    # The watcher finds descendants before it reads memory: once it has a descriptor of the child, it misses nothing.
    while not watches(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    told = record(tmp_path, f"rollout-0.{child}")
    assert told["pid"] == child
    assert told["signal"] == signal.SIGKILL or not told_exactly()
    assert parent.poll() is None
    assert records(tmp_path, "rollout-0") == [descendant]
    parent.kill()
    parent.wait()
    record(tmp_path, "rollout-0")
    assert records(tmp_path, "rollout-0") == [tmp_path / "rollout-0.json", descendant]
    # A successor of that name begins without records.
    successor = started("print(1, flush=True)\nimport time\ntime.sleep(1000)\n")
    assert watch(tmp_path, "rollout-0", successor.pid)
    assert records(tmp_path, "rollout-0") == []
    successor.kill()
    successor.wait()


@pytest.mark.parametrize(
    ("readings", "status", "for_memory"),
    [
        ([(0, 7), (1, 7), (2, 8)], signal.SIGKILL, True),
        ([(0, 7), (1, 8), (2, 8)], signal.SIGKILL, True),
        ([(0, 7), (1, 7), (2, 7)], signal.SIGKILL, False),
        ([(0, 7), (1, 8), (9, 8), (10, 8)], signal.SIGKILL, False),  # somebody else's, long ago
        ([(0, 7), (60, 8)], signal.SIGKILL, True),  # on a machine that stalled
        ([(0, 7), (1, 7), (2, 8)], signal.SIGSEGV, False),
        ([(0, 7), (1, 7), (2, 8)], 1 << 8, False),  # code 1
        ([(0, 7), (1, 7), (2, 8)], None, False),
    ],
)
def test_the_kernel_killed_for_memory_what_got_sigkill_while_its_count_rose(readings, status, for_memory):
    kills = _KernelKills()
    for now, count in readings:
        kills.look(now, count)
    assert kills.explain(status) == for_memory


def test_a_record_says_of_each_end_whether_the_kernel_did_it(tmp_path, monkeypatch):
    counts = iter([7, 8])
    monkeypatch.setattr(process_watch, "kernel_kills", lambda: next(counts, 8))
    process = started(HOLDS)
    watched = process_watch._Watched(process.pid, "learner-rank-0")
    process.kill()
    process_watch._watch(watched, tmp_path, descendants=False)
    process.wait()
    told = record(tmp_path, "learner-rank-0")
    assert told["by_kernel_for_memory"] == (told["signal"] == signal.SIGKILL)
    assert told["by_kernel_for_memory"] or not told_exactly()


@pytest.mark.slow
def test_descendants_that_are_ended_as_a_matter_of_course_leave_no_record(tmp_path):
    parent = started(
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {HOLDS!r}], stdout=subprocess.PIPE, text=True)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(1000)\n"
    )
    assert watch(tmp_path, "env-server", parent.pid, descendants=False)
    os.kill(int(parent.first_line), signal.SIGKILL)
    parent.kill()
    parent.wait()
    record(tmp_path, "env-server")
    assert records(tmp_path, "env-server") == [tmp_path / "env-server.json"]


def watches(pid: int) -> bool:
    """Whether any process holds a descriptor of the process."""
    for info in Path("/proc").glob("[0-9]*/fdinfo/*"):
        try:
            if f"\nPid:\t{pid}\n" in info.read_text():
                return True
        except OSError:
            continue
    return False


def test_a_watcher_that_cannot_be_started_is_no_error(tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    assert not watch(in_the_way / "ends", "rollout-0")


def test_memory_of_this_process_and_of_its_node_is_known():
    own = os.getpid()
    pss, peak = pss_bytes(own), peak_rss_bytes(own)
    used, total = node_memory()
    assert pss and peak and 0 < pss <= peak <= total
    assert 0 < used <= total
    assert kernel_kills() >= 0
    assert peak_rss_bytes(2**22 + 1) is None
