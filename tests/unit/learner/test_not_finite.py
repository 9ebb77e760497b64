"""What is said of an update whose gradient is not finite, worked by hand."""

from __future__ import annotations

import numpy as np

from openrlhf_tir.learner.packing import Row
from openrlhf_tir.learner.rows import Sample
from openrlhf_tir.learner.updates.not_finite import faults, told
from tests.e2e.support.learner_batch import group_of, make_batch, trajectory

TRAJECTORIES = [trajectory(i, [1], [("model", [5, 6], 0)], 1.0) for i in range(6)]
BATCH = make_batch([group_of(0, [1], TRAJECTORIES)], 1)
KEY = BATCH.items[0].meta.key


def sample(i: int, advantage: float = 1.0, masked: bool = False) -> Sample:
    return Sample((0, i, 0), TRAJECTORIES[i], np.ones(2, bool), np.full(2, advantage), masked)


def row(**fields: float) -> Row:
    return Row(np.zeros(3, np.int64), {name: np.array([0.0, value]) for name, value in fields.items()})


def test_tensor_and_trajectory_are_named_and_masked_ones_have_no_row():
    """Sample 0 is masked; 1 was sampled with a log-prob of -inf; 2 has NaN advantages, which whitening has spread to
    the row of 1; the weights make NaN of 3."""
    samples = [sample(0, np.nan, masked=True), sample(1), sample(2, np.nan), sample(3)]
    rows = [row(advantages=np.nan, rollout_logprobs=-np.inf), row(advantages=np.nan), row(advantages=0.5)]
    scored = [np.zeros(2), np.zeros(2), np.array([0.0, np.nan])]
    found = list(faults(samples, rows, scored))
    assert found == [("rollout_logprobs", 0, 1), ("advantages", 0, 2), ("log_probs", 0, 3)]
    assert told(BATCH, 7, found) == (
        f"Update 7, not finite: advantages of {KEY} sample 2; log_probs of {KEY} sample 3; rollout_logprobs of {KEY}"
        " sample 1."
    )


def test_many_are_counted_and_an_overflow_on_the_way_is_said_as_one():
    said = told(BATCH, 0, [("log_probs", 0, i) for i in range(6)])
    assert said.endswith(f"{KEY} sample 3 and 2 more.")
    assert "all that enters its loss is finite" in told(BATCH, 0, [])
