"""What answers at the URL is no OpenEnv server, or one of another version: errors, no observation. Needs no package."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

import env_servers.adapters.openenv.link as link_module
from env_servers.actions import BadAction
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

    async with serving(ws if socket else None, told) as (http, url):
        yield http, url


@asynccontextmanager
async def serving(ws, told=None):
    """(pool, URL) of a server with these handlers."""
    app = web.Application()
    for path, handler in (("/ws", ws), ("/schema", told)):
        if handler is not None:
            app.router.add_get(path, handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    async with aiohttp.ClientSession() as http:
        yield http, f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.mark.parametrize(
    "schema",
    [
        *({"action": {}}, ["env"], {"env": "echo", "action": "text"}),
        *({"action": {"properties": properties}, "observation": {}} for properties in (["text"], {"text": 5}, None)),
    ],
)
async def test_an_unknown_kind_of_schema_is_refused_at_start(schema):
    async with answering(schema=schema) as (http, url):
        with pytest.raises(OpenEnvMismatch, match="/schema"):
            await schema_of(http, url)


async def test_a_schema_that_no_parser_follows_is_refused_at_start():
    async def told(request):
        return web.Response(text="[" * 30000)

    async with serving(None, told) as (http, url):
        with pytest.raises(OpenEnvFailed):
            await schema_of(http, url)


async def test_a_server_without_the_websocket_is_another_version():
    async with answering(socket=False) as (http, url):
        with pytest.raises(OpenEnvMismatch, match=rf"{url}/ws .*HTTP 404"):
            await OpenEnvLink(http, url).reset(seed=1)


@pytest.mark.parametrize(
    "reply",
    [
        {"observation": {}},
        {"type": "observation", "data": {"obs": 1}},
        {"type": "error", "data": {"code": "UNKNOWN_TYPE", "message": "reset?"}},
        {"type": "error", "data": {"code": "VALIDATION_ERROR", "errors": 5}},
        [1],
    ],
)
async def test_an_answer_of_another_version_is_named_and_never_an_observation(reply):
    async with answering(reply) as (http, url):
        with pytest.raises(OpenEnvMismatch, match=rf"'reset'.*{re.escape(link_module.KNOWN)}"):
            await OpenEnvLink(http, url).reset(seed=1)


@pytest.mark.parametrize(
    "reply", ["no json", "[" * 30000, {"type": "error", "data": {"code": "FACTORY_ERROR", "message": "no display"}}]
)
async def test_the_error_names_the_server_that_failed(reply):
    async with answering(reply) as (http, url):
        with pytest.raises(OpenEnvFailed):
            await OpenEnvLink(http, url).reset(seed=1)


async def test_a_connection_that_ends_ends_the_episode():
    async with answering(GOOD) as (http, url):
        env = OpenEnvEnv(lambda: http, url, Shape.of(Schema(**SCHEMA), None, None))
        assert await env.reset({}, 0) == "hello"
        for _ in range(2):
            with pytest.raises(OpenEnvFailed, match=re.escape(url)):
                await env.step("a", 5.0)
        await env.close()


async def test_an_observation_without_the_expected_field_is_another_version_and_not_an_empty_text():
    other = {"type": "observation", "data": {"observation": {"answer": "hello"}}}
    async with answering(GOOD, other) as (http, url):
        env = OpenEnvEnv(lambda: http, url, Shape.of(Schema(**SCHEMA), None, None))
        await env.reset({}, 0)
        with pytest.raises(OpenEnvMismatch, match=r"'reply'.*\banswer\b"):
            await env.step("a", 5.0)
        await env.close()


@pytest.mark.parametrize(
    ("loc", "error"),
    [
        (["message"], BadAction),
        (["message", 0], BadAction),
        ([], BadAction),
        (["reply"], OpenEnvFailed),
        (["config", "path"], OpenEnvFailed),
    ],
)
async def test_a_complaint_about_unknown_fields_is_the_servers_failure(loc, error):
    refusal = {
        "type": "error",
        "data": {
            "code": "VALIDATION_ERROR",
            "message": "Invalid message",
            "errors": [{"loc": loc, "msg": "Field required"}],
        },
    }
    async with answering(GOOD, refusal) as (http, url):
        link = OpenEnvLink(http, url, SCHEMA["action"]["properties"])
        await link.reset()
        with pytest.raises(error, match="Field required"):
            await link.step({"message": "a"})
        await link.close()


async def test_a_server_that_hangs_is_abandoned_at_the_handshake_and_at_the_close(monkeypatch):
    monkeypatch.setattr(link_module, "CLOSE_S", 0.1)
    connections, over = [], asyncio.Event()

    async def hangs(request):
        if not connections:
            w = web.WebSocketResponse()
            await w.prepare(request)
            await w.receive()
            await w.send_json(GOOD)
        connections.append(request)
        await over.wait()
        return web.Response()

    async with serving(hangs) as (http, url):
        link = OpenEnvLink(http, url)
        assert (await link.reset()).observation == {"reply": "hello"}
        monkeypatch.setattr(link_module, "CONNECT_S", 0.1)
        with pytest.raises(OpenEnvFailed, match="TimeoutError"):
            await OpenEnvLink(http, url).reset()
        async with asyncio.timeout(300):
            await link.close()
        over.set()


def test_an_unknown_field_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'text'.*\bmessage\b"):
        Shape.of(Schema(**SCHEMA), "text", None)
    assert Shape.of(Schema(**SCHEMA), None, "").shown_field is None


@pytest.mark.parametrize(
    ("truncated_field", "done", "ends"),
    [
        (True, True, (False, True)),
        (False, True, (True, False)),
        (True, False, (False, False)),
        (None, True, (True, False)),
    ],
)
async def test_an_end_that_the_observation_calls_truncated_is_a_truncation(truncated_field, done, ends):
    """As an environment of ours says it, that is served as OpenEnv."""
    over = {
        "type": "observation",
        "data": {"observation": {"reply": "", "truncated": truncated_field}, "reward": 0.5, "done": done},
    }
    async with answering(GOOD, over) as (http, url):
        env = OpenEnvEnv(lambda: http, url, Shape.of(await schema_of(http, url), None, None))
        await env.reset({}, 0)
        step = await env.step("go", 5.0)
        assert ((step.done, step.truncated), step.reward) == (ends, 0.5)
        await env.close()
