"""Another node's clock is known as well as its quickest answer tells, and not better."""

from __future__ import annotations

import logging

import pytest

from openrlhf_tir.telemetry.clock import Clock


def test_times_of_a_node_an_hour_ahead_are_corrected_and_the_offset_is_logged_once(caplog):
    clock = Clock("node 10.0.0.2")
    with caplog.at_level(logging.WARNING):
        clock.record_answer(100.0, 3700.5, 101.0)
        clock.record_answer(200.0, 3800.1, 200.2)
    assert clock.to_local(3900.0) == pytest.approx(300.0)
    (record,) = caplog.records
    assert record.args[0] == "node 10.0.0.2" and record.args[1] == pytest.approx(3600.0)


def test_a_slow_answer_does_not_replace_a_quick_one():
    clock = Clock("a node")
    clock.record_answer(0.0, -50.0, 0.1)
    clock.record_answer(10.0, -35.0, 20.0)
    assert clock.ahead_s == pytest.approx(-50.05)


def test_a_clock_that_is_set_while_the_run_runs_is_believed_though_its_answer_is_slow():
    clock = Clock("a node")
    clock.record_answer(100.0, 3700.05, 100.1)
    clock.record_answer(200.0, 3801.0, 202.0)
    assert clock.ahead_s == pytest.approx(3600.0), "no more than its way there and back"
    clock.record_answer(300.0, 300.9, 302.0)
    assert clock.to_local(310.0) == 310.0


def test_a_clock_that_is_off_by_no_more_than_the_way_there_and_back_is_not_touched(caplog):
    clock = Clock("a node")
    clock.record_answer(10.0, 10.0, 18.0)
    assert clock.to_local(12.0) == 12.0 and not caplog.records


def test_a_node_that_is_behind_is_logged_with_its_offset_and_uncertainty(caplog):
    clock = Clock("a node")
    clock.record_answer(1000.0, 900.0, 1004.0)
    assert clock.ahead_s == -102.0
    (record,) = caplog.records
    assert record.args == ("a node", 102.0, "behind", 2.0)


def test_our_own_clock_set_back_meanwhile_gives_no_negative_uncertainty():
    clock = Clock("a node")
    clock.record_answer(100.0, 100.0, 90.0)
    clock.record_answer(200.0, 200.0, 200.0)
    assert clock.to_local(300.0) == 300.0
