"""SIGTERM to a real run (Ray, two ZeRO-3 ranks, a sandbox server): checkpoint, exit code of its own, nothing left, and an exact resume."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.crash_trial import Job, command, controller_of, find, start, undisturbed
from openrlhf_tir.exit_codes import STOPPED
from openrlhf_tir.logs import metrics
from openrlhf_tir.replay.ledger import audit
from openrlhf_tir.toy.model import save_model
from openrlhf_tir.toy.task import write_data
from openrlhf_tir.weights.digest import digest_file

PATIENCE_S = 480


def below(process: subprocess.Popen) -> list[psutil.Process]:
    """Everything that the run has started."""
    return psutil.Process(process.pid).children(recursive=True)


def wait_for_step(run_dir: Path, step: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while max(metrics.read(run_dir).get("step", [0]), default=0) < step:
        assert process.poll() is None and time.monotonic() < deadline, (run_dir / "log").read_text()[-3000:]
        time.sleep(0.1)


@pytest.mark.slow
def test_a_run_that_gets_sigterm_saves_leaves_nothing_behind_is_not_restarted_and_resumes_exactly(tmp_path):
    """The launcher may restart it three times, and passes the signal on; the checkpoint is of a step that was not due to be saved."""
    save_model(tmp_path / "init", seed=0)
    write_data(tmp_path, seed=0, n_train=200)
    job = Job(tmp_path, None, engine="torch", mode="sync", steps=4)
    digest, _, _ = undisturbed(tmp_path / "undisturbed", job)

    run_dir = tmp_path / "run"
    run_dir.mkdir()
    flags = [*command(run_dir, job), "--train.stop_grace_s", "120", "--ckpt.save_steps", "-1"]
    first = start(flags, run_dir / "log")
    wait_for_step(run_dir, 1, first)
    ours = below(first)
    assert find(controller_of(psutil.Process(first.pid)), "learner-0") in ours
    os.kill(first.pid, signal.SIGTERM)
    code, log = first.wait(timeout=PATIENCE_S), (run_dir / "log").read_text()
    assert code == STOPPED, log[-3000:]
    assert "The run was stopped: SIGTERM" in log and "--resume goes on from it" in log and "Traceback" not in log, log[-3000:]
    assert (run_dir / "ckpt" / "latest").exists() and "Resuming from its last checkpoint" not in log
    _, alive = psutil.wait_procs(ours, timeout=60)
    assert [p.cmdline() for p in alive] == []

    second = start([*flags, "--resume"], run_dir / "log")
    assert second.wait(timeout=PATIENCE_S) == 0, (run_dir / "log").read_text()[-3000:]
    report = audit(run_dir / "ledger.jsonl")
    assert report.errors == report.open == [] and report.finished and report.rollbacks == 1
    assert len(set(report.trained)) == len(report.trained) == 16
    assert digest_file(run_dir / "model" / "model.safetensors") == digest
