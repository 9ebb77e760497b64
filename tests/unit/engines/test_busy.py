"""Seconds of an engine by what it did, on a clock that the test moves."""

from __future__ import annotations

from openrlhf_tir.engines.busy import BusyMeter, IdleWithGroups


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_every_second_is_busy_paused_or_idle():
    clock = Clock()
    meter = BusyMeter(clock)
    for seconds, event in (
        (1, meter.enter),  # idle until here
        (2, meter.enter),  # busy
        (4, meter.pause),  # busy
        (8, meter.leave),  # paused
        (16, meter.resume),  # paused
        (32, meter.leave),  # busy
    ):
        clock.now += seconds
        event()
    clock.now += 64
    assert meter.count() == {"busy": 2 + 4 + 32, "paused": 8 + 16, "idle": 1 + 64}


def test_idle_seconds_count_as_waits_while_groups_are_under_way():
    clock = Clock()
    meter = BusyMeter(clock)
    waits = IdleWithGroups(lambda: meter.count()["idle"])
    clock.now += 1  # no group
    with waits.group():
        clock.now += 2  # it waits
        with waits.group():
            meter.enter()
            clock.now += 4
            meter.leave()
            clock.now += 8  # both wait
            assert waits.seconds == 2 + 8
        clock.now += 16  # one waits
    clock.now += 32
    assert (waits.seconds, meter.count()["idle"]) == (2 + 8 + 16, 1 + 2 + 8 + 16 + 32)
