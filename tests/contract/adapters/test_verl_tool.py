"""verl-tool's batched /get_observation, against a server that speaks it as verl_tool/servers/serve.py does (the package
is in no registry)."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from env_servers.adapters.http import Pool
from env_servers.adapters.verl_tool.batches import MAX_REPLY, Batches, VerlToolFailed
from env_servers.adapters.verl_tool.env import VerlToolEnv
from env_servers.admission import CapacityFull


@asynccontextmanager
async def tool_server(*, max_batch=64, answer=None, handler=None):
    """(Batches, requests that came) of a tool server whose tool keeps what each trajectory has said."""
    requests, actions_by_trajectory = [], {}

    def observe(trajectory, action, extra):
        if extra.get("finish"):
            actions_by_trajectory.pop(trajectory, None)
            return "", True, True
        if action == "?":
            return {"obs": "", "invalid_reason": "no valid tool found for action"}, False, False
        if action == "raise":
            return {"obs": "", "error": "Tool processing failed: oh"}, True, False
        actions_by_trajectory.setdefault(trajectory, []).append(action)
        text = "+".join(actions_by_trajectory[trajectory]) + extra.get("mark", "")
        return ({"obs": text, "reward": 0.5}, True, True) if action == "end" else (text, False, True)

    async def get_observation(request):
        body = await request.json()
        requests.append(body)
        if answer is not None:
            return answer(body)
        rows = [
            observe(*row) for row in zip(body["trajectory_ids"], body["actions"], body["extra_fields"], strict=True)
        ]
        return web.json_response(
            dict(zip(("observations", "dones", "valids"), map(list, zip(*rows, strict=True)), strict=True))
        )

    app = web.Application()
    app.router.add_post("/get_observation", handler or get_observation)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    pool = Pool()
    batches = Batches(pool, f"http://127.0.0.1:{runner.addresses[0][1]}", window_s=0.02, max_batch=max_batch)
    yield batches, requests
    await batches.close()
    await pool.close()
    await runner.cleanup()


async def opened(batches, **task):
    env = VerlToolEnv(lambda: batches)
    await env.reset(task, 0)
    return env


async def test_concurrent_steps_are_one_request_and_each_session_gets_its_own_answer():
    async with tool_server(max_batch=3) as (batches, requests):
        one, two, three = [await opened(batches, extra_field={"mark": m}) for m in "xyz"]
        steps = await asyncio.gather(one.step("a", 60.0), two.step("b", 60.0), three.step("c", 60.0))
        assert [s.observation for s in steps] == ["ax", "by", "cz"] and [len(r["actions"]) for r in requests] == [3]
        assert (await one.step("d", 60.0)).observation == "a+dx"
        end = await one.step("end", 60.0)
        assert (end.observation, end.reward, end.done, end.outcome) == ("a+d+endx", 0.5, True, "ok")


async def test_an_action_that_no_tool_parses_is_a_model_error():
    async with tool_server() as (batches, _):
        env = await opened(batches)
        step = await env.step("?", 60.0)
        assert (step.outcome, step.observation, step.reward, step.done) == (
            "model_error",
            "no valid tool found for action",
            None,
            False,
        )
        assert step.signals == {"steps": 1, "invalid": 1, "error_type": "invalid"}
        assert (await env.step("a", 60.0)).outcome == "ok"


async def test_the_tools_are_notified_of_the_end_of_started_trajectories_only():
    async with tool_server() as (batches, requests):
        begun, idle = await opened(batches), await opened(batches)
        await begun.step("a", 60.0)
        await begun.close()
        await idle.close()
        assert [r["extra_fields"] for r in requests] == [[{}], [{"finish": True}]]
        assert requests[0]["trajectory_ids"] == requests[1]["trajectory_ids"]


async def test_a_step_whose_client_left_before_the_batch_was_sent_is_not_sent():
    async with tool_server() as (batches, requests):
        one, two = await opened(batches), await opened(batches)
        leaving = asyncio.create_task(one.step("a", 60.0))
        staying = asyncio.create_task(two.step("b", 60.0))
        await asyncio.sleep(0)
        leaving.cancel()
        assert (await staying).observation == "b" and [r["actions"] for r in requests] == [["b"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda body: web.json_response({"detail": "broken"}, status=500), VerlToolFailed),
        (lambda body: web.json_response({"detail": "overloaded"}, status=429), CapacityFull),
        (lambda body: web.Response(text="<html>"), VerlToolFailed),
        (lambda body: web.json_response({"observations": [], "dones": [], "valids": []}), VerlToolFailed),
        (lambda body: web.json_response({"results": ["a"]}), VerlToolFailed),
        (lambda body: web.Response(body=b'"\xff'), VerlToolFailed),
        (lambda body: web.Response(text="[" * 100_000), VerlToolFailed),
        (lambda body: web.Response(body=b" " * (MAX_REPLY + 1)), VerlToolFailed),
    ],
)
async def test_a_malformed_answer_is_a_named_error_of_every_action_in_the_batch(answer, error):
    async with tool_server(answer=answer) as (batches, _):
        one, two = await opened(batches), await opened(batches)
        async with asyncio.timeout(300):  # nobody waits for an answer that cannot come
            failed = await asyncio.gather(one.step("a", 60.0), two.step("b", 60.0), return_exceptions=True)
        assert [type(e) for e in failed] == [error, error]


@pytest.mark.parametrize("column", ["observations", "dones", "valids"])
async def test_a_malformed_entry_fails_its_own_action_only(column):
    def answer(body):
        count = len(body["actions"])
        columns = {"observations": list(body["actions"]), "dones": [False] * count, "valids": [True] * count}
        columns[column][1 % count] = [None]
        return web.json_response(columns)

    async with tool_server(answer=answer, max_batch=3) as (batches, _):
        one, two, three = [await opened(batches) for _ in range(3)]
        a, b, c = await asyncio.gather(*(env.step("x", 60.0) for env in (one, two, three)), return_exceptions=True)
        assert (a.observation, type(b), c.observation) == ("x", VerlToolFailed, "x")


async def test_no_step_waits_forever_whatever_happens_to_its_batch():
    async with tool_server() as (batches, _):
        env = await opened(batches)

        def breaks():
            raise KeyError("a session that is closed")

        batches._http = breaks
        async with asyncio.timeout(300):
            with pytest.raises(KeyError, match="a session that is closed"):
                await env.step("a", 60.0)


async def test_the_tools_are_notified_of_the_end_of_a_trajectory_whose_only_action_was_cancelled():
    asked, over = asyncio.Event(), asyncio.Event()

    async def slow(request):
        requests.append(await request.json())
        if len(requests) == 1:
            asked.set()
            await over.wait()
        return web.json_response({"observations": [""], "dones": [True], "valids": [True]})

    requests = []
    async with tool_server(handler=slow) as (batches, _):
        env = await opened(batches)
        step = asyncio.create_task(env.step("a", 60.0))
        await asked.wait()
        step.cancel()
        await env.close()
        assert [r["extra_fields"] for r in requests] == [[{}], [{"finish": True}]]
        over.set()


@pytest.mark.parametrize("reward", ["0.5", [1.0], "nan"])
async def test_a_reward_that_is_not_a_number_is_a_failure(reward):
    def answer(body):
        return web.json_response({"observations": [{"obs": "a", "reward": reward}], "dones": [False], "valids": [True]})

    async with tool_server(answer=answer) as (batches, _):
        with pytest.raises(VerlToolFailed, match=re.escape(repr(str(reward)))):
            await (await opened(batches)).step("a", 60.0)


async def test_an_exception_of_a_tool_is_an_error_and_not_an_observation():
    async with tool_server() as (batches, _):
        with pytest.raises(VerlToolFailed, match="Tool processing failed: oh"):
            await (await opened(batches)).step("raise", 60.0)


async def test_a_redirect_is_a_failure_and_is_not_followed():
    sent = []

    async def elsewhere(request):
        sent.append(await request.json())
        return web.json_response({"observations": ["x"], "dones": [False], "valids": [True]})

    async def handler(request):
        raise web.HTTPTemporaryRedirect("/elsewhere")

    async with tool_server(handler=handler) as (batches, _):
        env = await opened(batches)
        with pytest.raises(VerlToolFailed):
            await env.step("a", 60.0)
    assert sent == []
