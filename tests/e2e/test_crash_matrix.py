"""One run of the crash matrix: three processes of it die by kill -9, and it ends by itself as if none had. `benchmarks.crash_matrix` has the rest."""

from __future__ import annotations

import pytest

from benchmarks.crash_trial import Fault, Job, trial, undisturbed
from openrlhf_tir.toy.model import save_model
from openrlhf_tir.toy.task import write_data


@pytest.mark.slow
def test_whatever_is_killed_the_run_recovers_and_its_weights_are_those_of_an_undisturbed_one(tmp_path):
    save_model(tmp_path / "init", seed=0)
    write_data(tmp_path, seed=0, n_train=200)
    job = Job(tmp_path, None, engine="torch", mode="sync", steps=4)
    digest, _, seconds = undisturbed(tmp_path / "undisturbed", job)
    faults = [Fault("learner-1", 0.5), Fault("env", 1.5), Fault("controller", 2.5)]
    done = trial(tmp_path / "trial", job, faults, seconds / job.steps, digest)
    log = (tmp_path / "trial" / "log").read_text()[-3000:]
    assert all(k.at_step is not None for k in done.faults), log
    assert (done.recovered, done.audit_clean, done.weights_equal) == ("alone", True, True), log
