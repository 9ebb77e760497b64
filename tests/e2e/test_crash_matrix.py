"""One run of the crash matrix: three processes of it die by kill -9, and it ends by itself as if none had.
`benchmarks.crash_matrix` has the rest, test_stop_signal.py a shorter one."""

from __future__ import annotations

import pytest

from benchmarks.crash_trial import Fault, trial


@pytest.mark.long
def test_whatever_is_killed_the_run_recovers_and_its_weights_are_those_of_an_undisturbed_one(toy_run, tmp_path):
    faults = [Fault("learner-1", 0.5), Fault("env", 1.5), Fault("controller", 2.5)]
    done = trial(tmp_path / "trial", toy_run.job, faults, toy_run.step_s, toy_run.digest)
    log = (tmp_path / "trial" / "log").read_text()[-3000:]
    assert all(k.at_step is not None for k in done.faults), log
    assert (done.recovered, done.audit_clean, done.weights_equal) == ("alone", True, True), log
