"""A whole job (driver, Ray, learner ranks, rollout actor, sandbox server) is suspended for longer than every deadline
of the run, as Slurm's gang scheduling does it with SIGSTOP, and goes on as if nothing had been."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil
import pytest

from benchmarks.crash_trial import DEADLINES, clean, command, end, last_step, outcome, start
from benchmarks.stop_trial import wait_until
from openrlhf_tir.pipeline.watchdog import DUMP

AWAY_S = 80.0


@pytest.mark.long
def test_a_suspension_of_the_whole_job_is_no_stall_and_changes_nothing(toy_run, tmp_path):
    deadlines = {
        **DEADLINES,
        "timeouts.push_s": 20,
        "rollout.group_deadline_s": 35,  # with a call of the learner the run's own patience: 75 s
    }
    process = start(command(tmp_path, toy_run.job, deadlines=deadlines), tmp_path / "log")
    assert wait_until(process, tmp_path, lambda: last_step(tmp_path) >= 1)
    job = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for suspended in job:
        with suppress(psutil.NoSuchProcess):
            suspended.suspend()
    time.sleep(AWAY_S)
    for suspended in reversed(job):
        with suppress(psutil.NoSuchProcess):
            suspended.resume()
    assert end(process) == 0, (tmp_path / "log").read_text()[-3000:]
    said = (tmp_path / "log").read_text()
    assert not (tmp_path / DUMP).exists() and "(train.max_restarts)" not in said, said[-3000:]
    assert clean(tmp_path, toy_run.job.steps) and outcome(tmp_path) == (toy_run.digest, None)
