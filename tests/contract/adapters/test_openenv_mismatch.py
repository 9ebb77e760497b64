"""What answers at the URL is no OpenEnv server, or one of another version: named errors, and no observation. Needs no package."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from env_servers.adapters.openenv.env import OpenEnvEnv, Shape
from env_servers.adapters.openenv.link import OpenEnvFailed, OpenEnvLink, OpenEnvMismatch, Schema, schema_of

SCHEMA = {
    "action": {"properties": {"message": {"type": "string"}, "metadata": {"type": "object"}}},
    "observation": {"properties": {"reply": {"type": "string"}, "done": {"type": "boolean"}, "reward": {}}},
}
GOOD = {"type": "observation", "data": {"observation": {"reply": "hello"}, "reward": None, "done": False}}


@asynccontextmanager
async def answering(*replies, schema=SCHEMA, socket=True):
    """(pool, URL) of a server that sends `replies`, one per message, and then closes."""

    async def ws(request):
        w = web.WebSocketResponse()
        await w.prepare(request)
        for reply in replies:
            await w.receive()
            await w.send_str(reply if isinstance(reply, str) else json.dumps(reply))
        await w.receive()
        await w.close()
        return w

    async def told(request):
        return web.json_response(schema)

    app = web.Application()
    app.router.add_get("/schema", told)
    if socket:
        app.router.add_get("/ws", ws)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    async with aiohttp.ClientSession() as http:
        yield http, f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.mark.parametrize("schema", [{"action": {}}, ["env"], {"env": "echo", "action": "text"}])
async def test_a_schema_of_another_kind_is_named_at_start(schema):
    async with answering(schema=schema) as (http, url):
        with pytest.raises(OpenEnvMismatch, match="is no OpenEnv server"):
            await schema_of(http, url)


async def test_a_server_without_the_websocket_is_another_version():
    async with answering(socket=False) as (http, url):
        with pytest.raises(OpenEnvMismatch, match=r"is no WebSocket \(HTTP 404\)"):
            await OpenEnvLink(http, url).reset(seed=1)


@pytest.mark.parametrize(
    "reply",
    [{"observation": {}}, {"type": "observation", "data": {"obs": 1}}, {"type": "error", "data": {"code": "UNKNOWN_TYPE", "message": "reset?"}}, [1]],
)
async def test_an_answer_of_another_version_is_named_and_never_an_observation(reply):
    async with answering(reply) as (http, url):
        with pytest.raises(OpenEnvMismatch, match="no message of openenv-core"):
            await OpenEnvLink(http, url).reset(seed=1)


@pytest.mark.parametrize("reply", ["no json", {"type": "error", "data": {"code": "FACTORY_ERROR", "message": "no display"}}])
async def test_a_server_that_fails_is_named(reply):
    async with answering(reply) as (http, url):
        with pytest.raises(OpenEnvFailed):
            await OpenEnvLink(http, url).reset(seed=1)


async def test_a_connection_that_ends_ends_the_episode():
    async with answering(GOOD) as (http, url):
        env = OpenEnvEnv(lambda: http, url, Shape.of(Schema(**SCHEMA), None, None))
        assert await env.reset({}, 0) == "hello"
        for _ in range(2):
            with pytest.raises(OpenEnvFailed, match="ended"):
                await env.step("a", 5.0)
        await env.close()


def test_a_field_that_the_server_lacks_is_refused_with_those_that_it_has():
    with pytest.raises(ValueError, match="'text': the server's fields are message"):
        Shape.of(Schema(**SCHEMA), "text", None)
    assert Shape.of(Schema(**SCHEMA), None, "").shown is None
