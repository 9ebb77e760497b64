"""Refusals: what a server says about when to come again, and what is made of it."""

from __future__ import annotations

import pytest

from openrlhf_tir.rollout.environment_client.refusals import Refusals, seconds


@pytest.mark.parametrize(
    ("said", "waited"),
    [
        ("2", 2.0), ("0.5", 0.5), ("0", 0.02), ("600", 60.0), (None, 1.0), ("", 1.0), ("nan", 1.0), ("-1", 1.0),
        ("inf", 1.0), ("1e999", 1.0), ("soon", 1.0),
    ],
)  # fmt: skip
def test_a_servers_word_counts_within_bounds_and_nonsense_is_a_second(said, waited):
    assert seconds(said) == waited


def test_refusals_in_a_row_double_the_pause_up_to_five_seconds_and_an_answer_ends_them():
    r, pauses = Refusals(), []
    for i in range(12):
        assert r.refused(sent_at=i + 0.1, now=i + 0.2)
        pauses.append(r.pause_s(0.02))
    assert pauses == [0.02, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.0, 5.0, 5.0]
    r.taken()
    r.refused(20.0, 20.1)
    assert r.pause_s(0.02) == 0.02


def test_calls_that_were_refused_together_are_one_refusal():
    r = Refusals()
    assert [r.refused(sent, now=1.0) for sent in (0.1, 0.2, 0.3)] == [True, False, False]
    assert r.in_a_row == 1
