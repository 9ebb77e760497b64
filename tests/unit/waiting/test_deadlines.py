"""Deadlines of calls to other processes. Virtual time."""

from __future__ import annotations

import asyncio

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.errors import DeadlineMissed
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.waiting.deadlines import (
    Deadline,
    GivenUp,
    agent_deadline,
    answer_deadline,
    broadcast_deadline,
    within,
)

TEN = Deadline(10.0, "timeouts.push_s")


async def later(seconds: float, result):
    await asyncio.sleep(seconds)
    if isinstance(result, Exception):
        raise result
    return result


def test_what_is_over_in_time_gives_its_result_or_its_own_error():
    async def scenario():
        assert await within(TEN, later(9.9, "weights"), "The push") == "weights"
        with pytest.raises(KeyError, match="a bug"):
            await within(TEN, later(9.9, KeyError("a bug")), "The push")

    run(scenario())


def test_a_call_that_hangs_is_given_up_at_the_deadline_and_its_setting_is_named():
    async def scenario():
        loop, hung = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
        begun = loop.time()
        with pytest.raises(DeadlineMissed, match=r"^The push to rollout-1 .*timeouts\.push_s = 10 s"):
            await within(TEN, hung, "The push to rollout-1")
        assert loop.time() - begun == pytest.approx(10)
        assert hung.cancelled()

    run(scenario())


def test_a_caller_that_is_cancelled_takes_its_call_along():
    async def scenario():
        hung = asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(within(TEN, hung, "The push"))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled() and hung.cancelled()

    run(scenario())


def test_a_process_that_was_stopped_itself_does_not_take_its_own_absence_for_the_others():
    async def scenario():
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        waiting = asyncio.create_task(within(TEN, answer, "The push"))
        await asyncio.sleep(1)
        loop._now += 3600  # stopped for an hour; the answer is read a moment after the timers that are due
        loop.call_later(0.5, answer.set_result, "weights")
        assert await waiting == "weights"

    run(scenario())


def test_deadlines_come_from_the_configuration_by_name():
    cfg = Config(timeouts={"push_s": 7})
    assert Deadline.of(cfg, "timeouts.push_s") == Deadline(7.0, "timeouts.push_s")
    both = Deadline.of(cfg, "timeouts.push_s") + Deadline.of(cfg, "rollout.group_deadline_s", parts=6)
    assert str(both) == "timeouts.push_s + rollout.group_deadline_s / 6 = 607 s"


@pytest.mark.parametrize(("push_s", "answer_s", "bucket_s"), [(40, 20, 4), (600, 300, 60), (3600, 300, 60)])
def test_parts_of_a_push_do_not_grow_with_it_for_ever(push_s, answer_s, bucket_s):
    cfg = Config(timeouts={"push_s": push_s})
    answer, bucket = answer_deadline(cfg), broadcast_deadline(cfg)
    assert (answer.seconds, bucket.seconds) == (answer_s, bucket_s)
    assert ("min(" in answer.setting) == ("min(" in bucket.setting) == (push_s > 600)


@pytest.mark.parametrize(
    ("group_s", "step_s", "silence_s", "setting"),
    [
        (3600, 20, 600, "rollout.group_deadline_s / 6"),
        (7200, 20, 1200, "rollout.group_deadline_s / 6"),
        (900, 20, 600, "deadlines.AGENT_S"),
        (1200, 1000, 1000, "env.step_timeout_s"),
        (300, 20, 300, "rollout.group_deadline_s"),
    ],
)
def test_an_agent_may_be_silent_for_minutes_but_not_longer_than_its_group_takes(group_s, step_s, silence_s, setting):
    cfg = Config(rollout={"group_deadline_s": group_s}, env={"step_timeout_s": step_s})
    assert agent_deadline(cfg) == Deadline(silence_s, setting)
    least = Deadline(4 * step_s, "4 * env.step_timeout_s")
    assert agent_deadline(cfg, least).seconds == min(group_s, max(silence_s, 4 * step_s))


def test_what_ends_many_calls_at_once_ends_those_under_way_and_those_to_come_and_not_what_was_answered():
    async def scenario():
        loop = asyncio.get_running_loop()
        over, hung = loop.create_future(), [loop.create_future() for _ in range(3)]
        loop.call_later(5.0, over.set_result, None)
        calls = [within(TEN, call, "A group", unless=over) for call in (*hung, later(4.9, "answered"))]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(f) for f in found] == [GivenUp] * 3 + [str] and loop.time() == 5.0
        assert all(call.cancelled() for call in hung), "nobody waits for them"
        with pytest.raises(GivenUp):
            await within(TEN, later(1.0, "too late"), "A group", unless=over)
        assert loop.time() == 5.0

    run(scenario())


def test_a_deadline_holds_also_where_something_else_may_end_the_call_before():
    async def scenario():
        loop = asyncio.get_running_loop()
        with pytest.raises(DeadlineMissed):
            await within(TEN, loop.create_future(), "The push", unless=loop.create_future())
        assert loop.time() == 10.0

    run(scenario())
