"""Breaker: when a server is left alone, and what lets it back."""

from __future__ import annotations

from openrlhf_tir.rollout.environment_client.breaker import Breaker


def fail(breaker: Breaker, times: int) -> None:
    for _ in range(times):
        breaker.failed(breaker.enter(), "boom")


def test_only_failures_in_a_row_open_it():
    b = Breaker(threshold=3)
    fail(b, 2)
    b.succeeded(b.enter())
    fail(b, 2)
    assert b.state == "closed"
    fail(b, 1)
    assert (b.state, b.admits, b.cause, b.pause_s) == ("open", False, "boom", 1.0)


def test_once_healthy_it_lets_one_call_through_and_closes_when_that_succeeds():
    b = Breaker(threshold=1)
    fail(b, 1)
    b.healthy()
    trial = b.enter()
    assert not b.admits
    b.succeeded(trial)
    assert (b.state, b.admits) == ("closed", True)


def test_a_failed_trial_doubles_the_pause_up_to_the_maximum_and_a_success_resets_it():
    b, pauses = Breaker(threshold=1, first_pause_s=1.0, max_pause_s=5.0), []
    for _ in range(4):
        fail(b, 1)
        pauses.append(b.pause_s)
        b.healthy()
    assert pauses == [1.0, 2.0, 4.0, 5.0]
    b.succeeded(b.enter())
    fail(b, 1)
    assert b.pause_s == 1.0


def test_calls_from_before_the_change_of_state_are_old_news():
    b = Breaker(threshold=1)
    early, late = b.enter(), b.enter()
    b.failed(early, "boom")
    b.healthy()
    b.failed(late, "boom")
    assert b.state == "trial"
    b.succeeded(late)
    assert b.state == "trial"


def test_a_trial_that_was_cancelled_leaves_room_for_another():
    b = Breaker(threshold=1)
    fail(b, 1)
    b.healthy()
    b.leave(b.enter(), answered=False)
    b.enter()
    assert not b.admits


def test_every_answer_in_trial_lets_one_more_call_in_at_once():
    b = Breaker(threshold=1)
    fail(b, 1)
    b.healthy()
    b.leave(b.enter(), answered=True)
    tickets = [b.enter()]
    assert b.admits
    tickets.append(b.enter())
    assert not b.admits
    b.failed(tickets[0], "boom")
    assert b.state == "open"
    b.leave(tickets[1], answered=True)
    assert b.state == "open" and not b.admits


def test_one_failure_in_trial_opens_it_whatever_the_threshold():
    b = Breaker(threshold=3)
    fail(b, 3)
    b.healthy()
    fail(b, 1)
    assert b.state == "open"


def test_a_call_from_before_makes_no_room_in_trial():
    b = Breaker(threshold=1)
    old = b.enter()
    fail(b, 1)
    b.healthy()
    b.enter()
    b.leave(old, answered=True)
    assert not b.admits
