"""How long the trainer has been in its phase, which the console and the watchdog say, and what it took in the end."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from openrlhf_tir.pipeline.observer import Observer
from openrlhf_tir.ports import StepReport


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


async def test_what_a_phase_took_is_in_the_next_row_and_those_of_the_timeline_are_spans_that_end_now(monkeypatch):
    seconds = [1000.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: seconds[0])
    rows, spans = {}, []
    metrics = SimpleNamespace(log=lambda step, row: rows.update({step: row}))
    trace = SimpleNamespace(add=lambda *span: spans.append(span))
    observer = Observer(metrics, trace, SimpleNamespace(update=lambda *row: None))
    for name, took_s in (("push", 3.0), ("wait for gate", 2.0)):
        with observer.phase(name, 4):
            seconds[0] += took_s
    observer.step_finished(StepReport(5, {}, 1.0, 8), batch_groups=2, rolling=0, buffered=0, extra={})
    assert (rows[5]["push_s"], rows[5]["gate_wait_s"]) == (3.0, 2.0)
    ((track, name, start, end),) = spans
    assert (track, name) == ("weights", "push 4")
    assert end - start == pytest.approx(3.0, abs=1e-3) and end <= time.time()


def test_an_observer_that_is_made_outside_of_a_loop_has_waited_for_nothing():
    assert Observer(SimpleNamespace(), SimpleNamespace(), SimpleNamespace()).phase_s == 0.0
