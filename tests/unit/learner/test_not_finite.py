"""The message about an update whose gradient is not finite, worked by hand."""

from __future__ import annotations

import re

import numpy as np

from openrlhf_tir.learner.packing import Row
from openrlhf_tir.learner.rows import Sample
from openrlhf_tir.learner.updates.not_finite import describe_faults, find_faults
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
    found = list(find_faults(samples, rows, scored))
    assert found == [("rollout_logprobs", 0, 1), ("advantages", 0, 2), ("log_probs", 0, 3)]
    message = describe_faults(BATCH, 7, found)
    for tensor, sample_number in (("advantages", 2), ("log_probs", 3), ("rollout_logprobs", 1)):
        assert re.search(rf"{tensor} \w+ {KEY} \w+ {sample_number}\b", message)


def test_a_message_names_four_trajectories_and_counts_the_others_and_an_overflow_names_none():
    message = describe_faults(BATCH, 0, [("log_probs", 0, i) for i in range(6)])
    named = [i for i in range(6) if re.search(rf"{KEY} \w+ {i}\b", message)]
    assert named == [0, 1, 2, 3]
    assert re.findall(r"\d+", message.rpartition(str(KEY))[2]) == ["3", "2"], "the last that is named, and the others"
    overflow = describe_faults(BATCH, 0, [])
    assert str(KEY) not in overflow
