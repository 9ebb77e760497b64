"""Credits: the window of calls in flight to one server."""

from __future__ import annotations

import asyncio

import pytest

from openrlhf_tir.rollout.environment_client.credits import Credits
from openrlhf_tir.simulation import virtual_loop


async def hold(credits: Credits, n: int) -> None:
    for _ in range(n):
        await credits.acquire(1)


async def test_the_window_grows_with_answers_up_to_the_local_cap():
    c = Credits(max_calls=18)
    await hold(c, 16)
    with pytest.raises(TimeoutError):
        await c.acquire(0.01)
    for _ in range(5):
        c.answered()
    await hold(c, 2)
    assert (c.in_flight, c.window) == (18, 18)


async def test_a_refusal_halves_what_was_in_flight_and_growth_is_then_one_per_round():
    c = Credits(max_calls=64)
    await hold(c, 16)
    now = asyncio.get_running_loop().time()
    c.refused(now)
    c.refused(now)  # refused together: one refusal
    assert c.window == 8
    for _ in range(8):
        c.answered()
    assert 8.9 < c.window < 9


def test_with_none_in_flight_retry_after_is_waited_for_and_calls_go_in_order():
    async def scenario():
        c, loop = Credits(max_calls=4), asyncio.get_running_loop()
        await c.acquire(1)
        start = loop.time()
        c.refused(start, after_s=0.05)
        c.release()
        went = []

        async def call(i: int) -> None:
            await c.acquire(1)
            went.append(i)
            c.release()

        await asyncio.gather(*[call(i) for i in range(4)])
        assert went == [0, 1, 2, 3]
        assert 0.05 <= loop.time() - start < 0.0751, "what the server says, and up to half of it more"

    virtual_loop.run(scenario())


async def test_a_refused_call_goes_again_when_others_were_answered_not_after_a_pause_of_all():
    c, loop = Credits(max_calls=16), asyncio.get_running_loop()
    await hold(c, 4)
    c.refused(loop.time(), after_s=30)
    c.release()
    again = asyncio.create_task(c.acquire(1))
    await asyncio.sleep(0)
    assert c.window == 2 and not again.done()
    for _ in range(2):
        c.answered()
        c.release()
    await again
    assert c.in_flight == 2


async def test_giving_up_leaves_no_credit_behind():
    c = Credits(max_calls=1)
    await c.acquire(1)
    waiting = [asyncio.create_task(c.acquire(5)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    c.release()  # grants the second, which is cancelled before it runs
    waiting[1].cancel()
    await waiting[2]
    assert await asyncio.gather(*waiting[:2], return_exceptions=True) and c.in_flight == 1
    c.release()
    assert (c.in_flight, c.waiting) == (0, 0)


async def test_who_waited_in_vain_waits_no_more():
    c = Credits(max_calls=1)
    await c.acquire(1)
    with pytest.raises(TimeoutError):
        await c.acquire(0.01)
    assert c.waiting == 0


async def test_actors_that_share_a_server_come_to_equal_shares():
    """A server with 24 places; one actor came long before the other."""
    first, second, room = Credits(max_calls=64), Credits(max_calls=64), 24
    shares: list[tuple[int, int]] = []
    await hold(first, 16)
    for _ in range(400):
        for c in (first, second):
            while c.in_flight < int(c.window):
                await c.acquire(1)
        shares.append((first.in_flight, second.in_flight))
        full = first.in_flight + second.in_flight > room
        for c in (first, second):
            now = asyncio.get_running_loop().time()
            if full:
                c.refused(now)
                await asyncio.sleep(0)
            for _ in range(c.in_flight):
                if not full:
                    c.answered()
                c.release()
    a, b = (sum(x) / 200 for x in zip(*shares[200:], strict=True))
    assert abs(a - b) < 2
    assert 0.6 * room < a + b <= room + 2
