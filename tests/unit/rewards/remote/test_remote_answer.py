"""What a remote reward may answer: OpenRLHF's forms, one value per response; everything else is named."""

from __future__ import annotations

import numpy as np
import pytest

from openrlhf_tir.rewards.remote.answer import parts_of, plain


def test_a_list_of_numbers_is_rewards_and_scores():
    first, second = parts_of([1.0, 0.25], 2)
    assert (first.reward, first.correct, first.parts) == (1.0, True, {"correct": 1.0})
    assert (second.reward, second.correct, second.parts) == (0.25, False, {"correct": 0.25})


def test_scores_are_what_filters_see_and_logs_become_parts():
    said = {"rewards": [1.2, -0.1], "scores": [1, 0], "extra_logs": {"per": [3, 4], "all": 0.5, "left out": None}}
    first, second = parts_of(said, 2)
    assert first == (1.2, True, {"per": 3.0, "all": 0.5, "correct": 1.0})
    assert second == (-0.1, False, {"per": 4.0, "all": 0.5, "correct": 0.0})


def test_one_response_may_be_answered_with_one_number_at_any_depth():
    assert (
        parts_of(0.5, 1)[0].reward == parts_of([[0.5]], 1)[0].reward == parts_of({"rewards": [0.5]}, 1)[0].reward == 0.5
    )


def test_tensors_cross_a_process_as_lists():
    assert plain({"rewards": np.array([1.0, 2.0]), "extra_logs": {"m": np.float32(0.5)}}) == {
        "rewards": [1.0, 2.0],
        "extra_logs": {"m": 0.5},
    }


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([1.0], "rewards .* 1 .* 2 "),
        (0.5, "rewards .* 1 .* 2 "),
        ({"scores": [1, 1]}, r'"rewards" .*: scores\)'),
        ({}, '"rewards" '),
        (None, r'"rewards" .*: rewards\)'),
        ([1.0, float("nan")], r"rewards .*nan \(float\)"),
        ([1.0, "high"], r"rewards .*'high' \(str\)"),
        ({"rewards": [1, 2], "scores": [1]}, "scores .* 1 .* 2 "),
        ({"rewards": [1, 2], "extra_logs": [1]}, r'"extra_logs" .*\blist\b'),
        ({"rewards": [1, 2], "extra_logs": {"a": [1, 2, 3]}}, "\"extra_logs\" .*'a' .* 3 .* 2 "),
    ],
)
def test_what_is_missing_or_no_number_is_never_a_zero(said, why):
    with pytest.raises(ValueError, match=why):
        parts_of(said, 2)
