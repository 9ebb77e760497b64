"""One run that a learner rank, SIGTERM, the environment server and the controller leave in turn (Ray, two ZeRO-3 ranks,
a sandbox server): checkpoint and exit code of its own, nothing left behind, and in the end the weights of a run that
nobody disturbed. `benchmarks.stop_matrix` stops at random moments."""

from __future__ import annotations

import pytest

from benchmarks.crash_trial import Fault, clean, command, end, last_step, outcome, start, strike
from benchmarks.stop_trial import stop, wait_until
from openrlhf_tir.cli.exit_codes import STOPPED
from openrlhf_tir.pipeline.ledger.ledger import audit
from openrlhf_tir.telemetry.lost import lost_processes


@pytest.mark.long
def test_a_run_that_loses_processes_and_is_stopped_between_ends_with_the_weights_of_an_undisturbed_one(
    toy_run, tmp_path
):
    """The launcher may restart it three times, and passes the signal on; the checkpoint is of a step that was not due
    to be saved."""
    args = [*command(tmp_path, toy_run.job, deadlines={}), "--train.stop_grace_s", "120", "--ckpt.save_steps", "3"]
    log = tmp_path / "log"
    killed, gone, crashed = Fault("learner-1", 0.0), Fault("env", 2.5), Fault("controller", 3.5)

    first = start(args, log)
    strike(first, tmp_path, killed, toy_run.step_s)
    assert wait_until(first, tmp_path, lambda: last_step(tmp_path) >= 1)
    before = log.read_text()
    stopped = stop(first, tmp_path)
    said = log.read_text()
    assert killed.at_step == 0 and any(" learner-" in line for line in lost_processes(tmp_path)), said[-3000:]
    assert (stopped.code, stopped.left) == (STOPPED, []), said[-3000:]
    assert "SIGTERM" in said and "--resume" in said and "Traceback" not in said, said[-3000:]
    assert (tmp_path / "ckpt" / "latest").read_text().strip() == f"step_{last_step(tmp_path):06d}" and last_step(
        tmp_path
    ) < 3
    assert "(train.max_restarts)" not in said.removeprefix(before), (
        "a launcher does not restart what it was asked to stop"
    )

    second = start([*args, "--resume"], log)
    for fault in (gone, crashed):
        strike(second, tmp_path, fault, toy_run.step_s)
    assert end(second) == 0 and gone.at_step is not None and crashed.at_step is not None, log.read_text()[-3000:]
    assert "(train.max_restarts)" in log.read_text()
    report = audit(tmp_path / "ledger.jsonl")
    assert clean(tmp_path, toy_run.job.steps) and report.finished and report.rollbacks >= 2
    assert outcome(tmp_path) == (toy_run.digest, None)
