"""How long the trainer has been in its phase, which the console and the watchdog say."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from openrlhf_tir.pipeline.observer import Observer


async def test_the_start_counts_from_the_start_and_a_phase_from_its_own_beginning(monkeypatch):
    loop = asyncio.get_running_loop()
    seconds = [1000.0]  # a machine that has been up for a while
    monkeypatch.setattr(loop, "time", lambda: seconds[0])
    observer = Observer(SimpleNamespace(), SimpleNamespace(add=lambda *span: None), SimpleNamespace())
    seconds[0] += 20
    assert observer.phase_s == 20
    with observer.phase("push", 0):
        seconds[0] += 3
        assert observer.phase_s == 3
    assert observer.phase_s == 23, "the phase around it goes on"


def test_an_observer_that_is_made_outside_of_a_loop_has_waited_for_nothing():
    assert Observer(SimpleNamespace(), SimpleNamespace(), SimpleNamespace()).phase_s == 0.0
