"""Freed memory goes back to the system near a rank's peak, as often as that costs little."""

from __future__ import annotations

import pytest

from openrlhf_tir.learner import host_memory
from openrlhf_tir.learner.host_memory import REST_PER_TRIM, Trimmer


class Clock:
    """A clock that stands still, but for what takes time."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()

    def slow_trim() -> None:
        clock.now += 0.5

    monkeypatch.setattr(host_memory, "give_back_freed", slow_trim)
    return clock


def test_a_trim_is_left_out_until_the_last_one_has_been_paid_for(clock):
    trimmer = Trimmer(clock)
    assert trimmer.trim()
    assert clock.now == 100.5
    clock.now += 0.5 * REST_PER_TRIM - 0.1
    assert not trimmer.trim()
    assert clock.now == 100.5 + 0.5 * REST_PER_TRIM - 0.1, "nothing was trimmed"
    clock.now += 0.2
    assert trimmer.trim()


def test_trims_and_touching_the_pages_again_take_at_most_eight_percent_however_short_a_micro_batch_is(clock):
    """A trim of .5 s, after which the pages cost ten times as much."""
    trimmer = Trimmer(clock)
    began = clock.now
    trims = 0
    for _ in range(100_000):
        clock.now += 0.01
        if trimmer.trim():
            trims += 1
            clock.now += 5.0
    assert trims > 1
    assert 5.5 * (trims - 1) / (clock.now - began) <= 0.08
