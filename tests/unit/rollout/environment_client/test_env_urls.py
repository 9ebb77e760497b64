"""Servers of an environment over time: out of order and back, full, draining, swapped for others."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from openrlhf_tir.errors import ConfigError, EnvError, EnvFull, EnvLost, EnvTimeout
from openrlhf_tir.rollout.environment_client.client import EnvClient, EnvLimits

from .scripted_env import Script, client, ok, one_step, outcome, stall, status


async def fail_until_open(c: EnvClient) -> None:
    for _ in range(5):
        with pytest.raises((EnvError, EnvTimeout)):
            await one_step(c)
    assert [s.breaker.state for s in c.urls] == ["open"]


async def test_a_server_that_fails_is_left_alone_until_its_health_is_ok_and_the_session_waits():
    async with Script(*[outcome("env_error")] * 5) as script, client(script) as c:
        script.health = {"env": "e", "status": "draining"}
        await fail_until_open(c)
        waiting = asyncio.create_task(one_step(c))
        while script.probes < 3:
            await asyncio.sleep(0.01)
        assert len(script.resets) == 5  # no session was spent on finding out
        script.health = {"env": "e"}
        assert (await waiting).outcome == "ok"
        assert [s.breaker.state for s in c.urls] == ["closed"]


@pytest.mark.parametrize("code", [200, 422, 500])
@pytest.mark.parametrize("text", ["null", "[" * 30000, '{"signals": null}', '{"signals": {"code_defect": "own.py:1"}}'])
async def test_a_server_whose_health_was_nonsense_is_used_again_once_it_is_well(code, text):
    async with Script(*[outcome("env_error")] * 5) as script, client(script) as c:
        script.on_health = status(code, text)
        await fail_until_open(c)
        while script.probes < 2:
            await asyncio.sleep(0.01)
        script.on_health = None
        assert (await one_step(c)).outcome == "ok"


async def test_a_health_check_with_a_bug_of_its_own_goes_on():
    async with Script(*[outcome("env_error")] * 5) as script, client(script) as c:
        probe = c.urls._probe
        c.urls._probe = None
        await fail_until_open(c)
        while "TypeError" not in next(iter(c.urls)).breaker.cause:
            await asyncio.sleep(0.01)
        c.urls._probe = probe
        assert (await one_step(c)).outcome == "ok"


async def test_one_call_tries_a_server_that_says_it_is_well_and_the_others_wait_for_its_verdict():
    release = asyncio.Event()

    async def slow(request, body):
        await release.wait()
        return ok(body)

    async with Script(*[outcome("env_error")] * 5, slow) as script, client(script) as c:
        await fail_until_open(c)
        sessions = [c.session("e", {}) for _ in range(4)]
        for s in sessions:
            s._server = s._front = next(iter(c.urls))
        steps = [asyncio.create_task(s.step("a", step_id=0)) for s in sessions]
        while len(script.seen) < 6:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert len(script.seen) == 6
        release.set()
        assert [r.outcome for r in await asyncio.gather(*steps)] == ["ok"] * 4


async def test_an_outage_of_all_servers_ends_the_wait_with_their_facts():
    async with (
        Script(*[status(500, "disk full")] * 9) as script,
        client(script, max_retries=0, outage_timeout_s=0.1) as c,
    ):
        script.health = {"env": "another"}
        await fail_until_open(c)
        while "another" not in next(iter(c.urls)).breaker.cause:
            await asyncio.sleep(0.01)
        with pytest.raises(EnvError, match=r"'e' .* 0\.1 s .*'another'"):
            await one_step(c)


async def test_a_step_whose_server_is_down_ends_with_its_own_deadline():
    async with Script(*[outcome("env_error")] * 5) as script, client(script, step_timeout_s=0.1) as c:
        script.health = {"env": "another"}
        async with c.session("e", {}) as s:
            await s.reset()
            await fail_until_open(c)
            while "another" not in next(iter(c.urls)).breaker.cause:
                await asyncio.sleep(0.01)
            with pytest.raises(EnvLost, match=rf"{script.url}.* 0\.1 s .*'another'"):
                await s.step("a", step_id=0)


async def test_a_broken_server_does_not_hold_up_another_environment():
    async with Script(*[stall] * 20) as hangs, Script() as works:
        limits = {"": EnvLimits(step_timeout_s=600, max_concurrency=2)}
        c = EnvClient({"e": hangs.url, "f": works.url}, limits=limits, grace_s=0.1)
        async with c:
            stuck = [asyncio.create_task(one_step(c)) for _ in range(6)]
            for _ in range(10):
                async with c.session("f", {}) as s:
                    await s.reset()
                    assert (await s.step("a", step_id=0)).outcome == "ok"
            assert not any(task.done() for task in stuck)
            for task in stuck:
                task.cancel()
            await asyncio.gather(*stuck, return_exceptions=True)


async def test_calls_of_a_server_that_hangs_end_with_their_deadlines():
    async with Script(*[stall] * 20) as hangs:
        async with client(hangs, step_timeout_s=0.3, grace_s=0.1, max_concurrency=2) as c:
            ended = await asyncio.gather(*(one_step(c) for _ in range(6)), return_exceptions=True)
            assert {type(e) for e in ended} == {EnvTimeout}


async def test_a_full_server_sends_new_sessions_to_the_other_one_and_keeps_its_own():
    async def full(request, body):
        return web.Response(status=429, headers={"Retry-After": "30"})

    async with Script() as a, Script() as b, client(a, b) as c:
        a.on_reset = full
        for _ in range(4):
            await one_step(c)
        assert (len(a.resets), len(b.resets)) in {(0, 4), (1, 4)}
        assert all(s.breaker.state == "closed" for s in c.urls)


async def test_no_room_for_a_session_is_its_own_fault():
    async def full(request, body):
        return web.Response(status=503, headers={"Retry-After": "0.05"})

    for timeout_s in (0.2, 20.0):  # long enough to ask again
        async with Script() as a, client(a, capacity_timeout_s=timeout_s) as c:
            a.on_reset = full
            with pytest.raises(EnvFull):
                await one_step(c)
            assert c.outcomes == {("e", "refused"): len(a.resets), ("e", "capacity"): 1}
        if len(a.resets) >= 2:
            break
    assert len(a.resets) >= 2


async def test_after_a_swap_new_sessions_go_to_the_new_server_once_it_is_well_and_old_ones_end_where_they_are():
    async with Script() as old, Script() as new, client(old) as c:
        async with c.session("e", {}) as s:
            await s.reset()
            new.health = {"env": "e", "status": "draining"}
            c.set_urls({"e": [new.url]})
            waiting = asyncio.create_task(one_step(c))
            while not new.probes:
                await asyncio.sleep(0.01)
            assert not new.resets and not waiting.done()
            new.health = {"env": "e"}
            await waiting
            assert (await s.step("a", step_id=0)).outcome == "ok"
        assert (len(old.resets), len(old.seen), len(new.resets), len(new.seen)) == (1, 1, 1, 1)
        assert c.servers == [new.url]


async def test_an_environment_may_appear_with_a_swap():
    async with Script() as a, Script() as b, client(a) as c:
        with pytest.raises(ConfigError, match="'f'"):
            c.session("f", {})
        b.health = {"env": "f"}
        c.set_urls({"e": a.url, "f": b.url})
        async with c.session("f", {}) as s:
            await s.reset()
        assert len(b.resets) == 1


async def test_a_server_named_by_reset_is_forgotten_with_its_last_session():
    async with Script() as front, Script() as holder, client(front) as c:
        front.names_server = holder.url
        async with c.session("e", {}) as s:
            await s.reset()
            assert c.servers == sorted([front.url, holder.url])
        assert c.servers == [front.url]


async def test_sessions_spread_over_fronts_though_other_processes_hold_them():
    async with Script() as a, Script() as b, Script() as holder, client(a, b) as c:
        a.names_server = b.names_server = holder.url
        held = [c.session("e", {}) for _ in range(6)]
        for s in held:
            await s.reset()
        assert (len(a.resets), len(b.resets)) == (3, 3)
        assert {s.url: s.sessions for s in c.urls} == {a.url: 0, b.url: 0, holder.url: 6}
        for s in held:
            await s.__aexit__()
        assert {s.url: s.opened for s in c.urls} == {a.url: 0, b.url: 0}
