"""Pauses between tries, by hand."""

from __future__ import annotations

import random

import pytest

from openrlhf_tir.errors import ConfigError, Unavailable
from openrlhf_tir.waiting.backoff import backoff_s, jittered, until_available


def test_a_pause_doubles_up_to_its_cap():
    assert [backoff_s(n, first_s=1, cap_s=10) for n in range(6)] == [1, 2, 4, 8, 10, 10]
    assert [backoff_s(n, first_s=5, cap_s=300) for n in (0, 1, 2, 6)] == [5, 10, 20, 300]


def test_fifteen_tries_take_minutes_and_not_nine_hours():
    """1 + 2 + 4 + 8 + 16 + 32 s, then a minute each."""
    assert sum(backoff_s(n) for n in range(15)) == 63 + 9 * 60


def test_any_number_of_failures_has_a_finite_pause():
    assert backoff_s(10**6, first_s=0.5, cap_s=7) == 7 and backoff_s(-1, first_s=0.5) == 0.5


def test_jitter_spreads_over_half_the_pause_and_keeps_the_cap():
    pauses = [jittered(60.0, random.Random(seed)) for seed in range(200)]
    assert 30 <= min(pauses) < 35 and 55 < max(pauses) <= 60


class Asked:
    """Something that is there at the `well`-th question, and a clock that only sleeping moves."""

    def __init__(self, well, error=Unavailable):
        self.well, self.error, self.at, self.said = well, error, [], []
        self.now = 0.0

    def ask(self):
        self.at.append(self.now)
        if len(self.at) < self.well:
            raise self.error("it does not answer")
        return "well"

    def sleep(self, seconds):
        self.now += seconds

    def until(self, wait_s):
        return until_available(self.ask, wait_s, say=self.said.append, clock=lambda: self.now, sleep=self.sleep)


def test_what_is_not_there_yet_is_asked_for_with_growing_pauses_and_said_once():
    asked = Asked(well=8)
    assert asked.until(900) == "well"
    pauses = [b - a for a, b in zip(asked.at, asked.at[1:], strict=False)]
    assert all(full / 2 <= pause <= full for pause, full in zip(pauses, [1, 2, 4, 8, 10, 10, 10], strict=True))
    assert asked.said == ["waiting up to 900 s: it does not answer"]


def test_the_wait_has_its_deadline_and_zero_is_one_question():
    with pytest.raises(Unavailable):
        (asked := Asked(well=99)).until(60)
    assert asked.at[-1] == 60
    with pytest.raises(Unavailable):
        (asked := Asked(well=2)).until(0)
    assert asked.at == [0] and asked.said == []


def test_a_mistake_is_not_waited_for():
    with pytest.raises(ConfigError):
        (asked := Asked(well=9, error=ConfigError)).until(900)
    assert len(asked.at) == 1
