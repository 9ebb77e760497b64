"""The bridge from OpenEnv's clients to a server of ours: what it opens it closes. Needs no package."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from env_servers.adapters.http import Pool
from env_servers.adapters.openenv.serve import Bridge
from openrlhf_tir.errors import EnvError


@asynccontextmanager
async def server(reset, step=None):
    """(Pool, URL, sessions that were closed there)."""
    closed = []

    async def close(request):
        closed.append(request.match_info["id"])
        return web.json_response({"closed": True})

    app = web.Application()
    app.router.add_post("/reset", reset)
    if step is not None:
        app.router.add_post("/step", step)
    app.router.add_delete("/session/{id}", close)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    pool = Pool()
    yield pool, f"http://127.0.0.1:{runner.addresses[0][1]}", closed
    await pool.close()
    await runner.cleanup()


async def test_a_session_whose_start_was_cancelled_is_closed_at_the_server():
    session_ids, over = [], asyncio.Event()
    begun = asyncio.Event()

    async def reset(request):
        session_ids.append((await request.json())["session_id"])
        begun.set()
        await over.wait()
        return web.Response()

    async with server(reset) as (pool, url, closed):
        bridge = Bridge(pool, url, 60.0)
        starting = asyncio.create_task(bridge.reset({}, 0))
        await begun.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert closed == session_ids and bridge.session is None
        over.set()


async def test_an_episode_starts_at_the_front_end_and_continues_at_its_own_server():
    opened, stepped = [], []

    async def reset(request):
        opened.append(request.host)
        body = await request.json()
        return web.json_response(
            {"session_id": body["session_id"], "observation": "", "server": f"http://localhost:{request.url.port}"}
        )

    async def step(request):
        stepped.append(request.host)
        body = await request.json()
        return web.json_response({"session_id": body["session_id"], "step_id": body["step_id"]})

    async with server(reset, step) as (pool, url, closed):
        bridge = Bridge(pool, url, 60.0)
        for _ in range(2):
            await bridge.reset({}, 0)
            await bridge.step("a")
        assert {h.partition(":")[0] for h in opened} == {"127.0.0.1"} and {h.partition(":")[0] for h in stepped} == {
            "localhost"
        }
        assert len(closed) == 1


async def test_an_answer_that_is_no_text_is_the_servers_failure():
    async def reset(request):
        return web.Response(status=500, body=b"\xff")

    async with server(reset) as (pool, url, _):
        with pytest.raises(EnvError, match="HTTP 500"):
            await Bridge(pool, url, 60.0).reset({}, 0)


async def test_a_malformed_answer_is_the_servers_failure_and_not_a_model_error():
    async def reset(request):
        return web.json_response({"env": "another"})

    async with server(reset) as (pool, url, _):
        with pytest.raises(EnvError, match="ResetReply"):
            await Bridge(pool, url, 60.0).reset({}, 0)
