"""Peak memory: children count, re-parented processes count when marked or seen before, shared pages count once."""

import os
import subprocess
import sys
import uuid

import psutil
import pytest

from openrlhf_tir.machine import process_memory
from openrlhf_tir.machine.process_memory import PssSampler, all_processes

HOLD_64_MIB = "import sys; x = bytearray(b'x') * (64 << 20); print('ready', flush=True); sys.stdin.read()"
LEAVE_AN_ORPHAN = """
import subprocess, sys
words = [sys.executable, "-S", "-c", "import time; time.sleep(60)", sys.argv[1]]
child = subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
sys.stdin.read()
"""


def start(code, *args):
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    return process, process.stdout.readline().strip()


def end(process):
    process.stdin.close()
    process.wait()
    process.stdout.close()


def holds(sampler, pid):
    sampler.peak_gib, sampler.peak_by_process = 0.0, {}
    sampler.sample()
    return any(name.endswith(f"({pid})") for name in sampler.peak_by_process)


def test_a_child_counts_and_the_peak_outlives_it():
    """By its own share: those of others move with what they share with processes of other tests."""
    sampler = PssSampler()
    child, _ = start(HOLD_64_MIB)
    sampler.sample()
    end(child)
    sampler.sample()
    (of_child,) = (gib for name, gib in sampler.peak_by_process.items() if name.endswith(f"({child.pid})"))
    assert 64 / 1024 <= of_child < 96 / 1024 and sampler.peak_gib == pytest.approx(
        sum(sampler.peak_by_process.values())
    )


def test_a_process_of_someone_else_does_not_count():
    child, _ = start(HOLD_64_MIB)
    assert not holds(PssSampler(root_pid=child.pid), os.getpid())
    end(child)


def test_a_reparented_process_counts_when_its_command_line_has_the_marker():
    marker = f"session_{uuid.uuid4().hex}"
    launcher, orphan = start(LEAVE_AN_ORPHAN, marker)
    end(launcher)
    try:
        sampler = PssSampler(root_pid=launcher.pid)
        assert not holds(sampler, orphan)
        sampler.watch(marker)
        assert holds(sampler, orphan)
    finally:
        os.kill(int(orphan), 9)


def test_a_process_once_ours_stays_ours_when_its_parent_dies():
    launcher, orphan = start(LEAVE_AN_ORPHAN, "x")
    try:
        sampler = PssSampler(root_pid=launcher.pid)
        assert holds(sampler, orphan)
        end(launcher)
        assert holds(sampler, orphan)
    finally:
        os.kill(int(orphan), 9)


def test_another_thread_that_asks_psutil_for_other_things_takes_nothing_away(monkeypatch):
    """psutil.process_iter gives all threads the same objects, and each caller writes its answers into them: one that
    comes while we sample."""
    real = process_memory._pss

    def meanwhile(of):
        list(psutil.process_iter(["name"]))
        return real(of)

    monkeypatch.setattr(process_memory, "_pss", meanwhile)
    sampler = PssSampler()
    assert sampler.sample() > 0 and sampler.peak_by_process


def test_a_process_that_is_gone_before_it_is_looked_at_is_left_out(monkeypatch):
    child, _ = start(HOLD_64_MIB)
    end(child)
    pids = psutil.pids()
    monkeypatch.setattr(psutil, "pids", lambda: [child.pid, *pids])
    seen = [s.process.pid for s in all_processes()]
    assert os.getpid() in seen and child.pid not in seen


def test_the_background_thread_samples_at_once_and_stops_with_the_block():
    with PssSampler(interval_s=60.0) as sampler:
        thread = sampler._thread
    assert sampler.peak_gib > 0 and not thread.is_alive()


@pytest.mark.parametrize(("given", "share"), [({}, process_memory.SHARE), ({"max_share": 0.05}, 0.05)])
def test_what_takes_long_is_sampled_seldom(monkeypatch, given, share):
    """The thread's own CPU time, whatever else the machine does meanwhile."""
    sampler, waits, spent = PssSampler(interval_s=2.0, **given), [], iter([10.0, 10.001, 20.0, 20.5])
    monkeypatch.setattr(process_memory.time, "thread_time", lambda: next(spent))
    monkeypatch.setattr(sampler, "sample", lambda: 0.0)

    def wait(seconds: float) -> None:
        waits.append(round(seconds, 3))
        if len(waits) == 2:
            sampler._stop.set()

    monkeypatch.setattr(sampler._stop, "wait", wait)
    sampler._run()
    assert waits == [2.0, 0.5 / share]
