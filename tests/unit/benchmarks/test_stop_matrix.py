"""The stop matrix without a run: which moments it picks, and what it takes for a stop in order."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial

import psutil

from benchmarks.crash_trial import of_run, start
from benchmarks.stop_matrix import planned
from benchmarks.stop_trial import Stopped, stop
from openrlhf_tir.cli.exit_codes import FAULT, NO, STOPPED

OBEDIENT = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5));"
    " print('up', flush=True)\nwhile True: time.sleep(0.01)"
)
LEAVES_A_CHILD = (
    "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'],"
    f" start_new_session=True); {OBEDIENT}"
)


def test_twenty_moments_are_of_every_phase_and_each_run_ends_with_that_of_its_end():
    runs = planned(20, steps=6, rng=random.Random(0))
    assert [len(moments) for moments in runs] == [5, 5, 5, 5]
    assert Counter(m.phase for moments in runs for m in moments) == {"training": 12, "loading": 4, "ending": 4}
    for moments in runs:
        due = [m.at for m in moments if m.phase == "training"]
        assert due == sorted(due) and due[0] >= 0 and due[-1] <= 6
        assert moments[-1].phase == "ending"
    assert planned(20, 6, random.Random(0)) == runs != planned(20, 6, random.Random(1))
    assert [len(moments) for moments in planned(7, 6, random.Random(0))] == [5, 2]


def test_an_error_is_no_stop_in_order():
    assert [Stopped(code, 0.0, 0, [], "").in_order for code in (STOPPED, -15, 143, 0, NO, FAULT, 15, 130, -9)] == [
        True
    ] * 4 + [False] * 5


def up(program: str, run_dir) -> subprocess.Popen:
    run_dir.mkdir()
    process = start([sys.executable, "-c", program], run_dir / "log")
    while (run_dir / "log").read_text() != "up\n":
        assert process.poll() is None
        time.sleep(0.01)
    return process


def test_a_process_that_outlives_its_run_is_found_though_nobody_is_its_parent(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.stop_trial.LEFT_S", 0.1)
    clean = stop(up(OBEDIENT, tmp_path / "clean"), tmp_path / "clean")
    assert (clean.code, clean.left, clean.said, clean.in_order) == (STOPPED, [], "up", True)
    leaky = stop(up(LEAVES_A_CHILD, tmp_path / "leaky"), tmp_path / "leaky")
    (left,) = leaky.left
    assert "time.sleep(1000)" in left and leaky.code == STOPPED
    (child,) = of_run(tmp_path / "leaky")
    child.kill()
    psutil.wait_procs([child], timeout=60)
    assert of_run(tmp_path / "leaky") == []


def test_a_run_that_failed_by_itself_just_before_the_signal_to_its_group_is_judged_by_its_exit_code(tmp_path):
    (tmp_path / "run").mkdir()
    process = start([sys.executable, "-c", f"raise SystemExit({FAULT})"], tmp_path / "run" / "log")
    process.wait(60)
    stopped = stop(process, tmp_path / "run", partial(os.killpg, process.pid, signal.SIGTERM))
    assert stopped.code == FAULT and not stopped.in_order
