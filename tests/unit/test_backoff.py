"""Pauses between tries, by hand."""

from __future__ import annotations

import random

from openrlhf_tir.backoff import backoff_s, jittered


def test_a_pause_doubles_up_to_its_cap():
    assert [backoff_s(n, first_s=1, cap_s=10) for n in range(6)] == [1, 2, 4, 8, 10, 10]


def test_fifteen_tries_take_minutes_and_not_nine_hours():
    """1 + 2 + 4 + 8 + 16 + 32 s, then a minute each."""
    assert sum(backoff_s(n) for n in range(15)) == 63 + 9 * 60


def test_any_number_of_failures_has_a_finite_pause():
    assert backoff_s(10**6, first_s=0.5, cap_s=7) == 7 and backoff_s(-1, first_s=0.5) == 0.5


def test_jitter_spreads_over_half_the_pause_and_keeps_the_cap():
    pauses = [jittered(60.0, random.Random(seed)) for seed in range(200)]
    assert 30 <= min(pauses) < 35 and 55 < max(pauses) <= 60
