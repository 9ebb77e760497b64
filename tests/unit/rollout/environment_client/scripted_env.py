"""A scripted environment server and a client of it, for the tests of the environment client."""

from __future__ import annotations

import asyncio
from dataclasses import fields

from aiohttp import web
from aiohttp.test_utils import TestServer

from openrlhf_tir.rollout.environment_client.client import EnvClient, EnvLimits


class Script:
    """A server that answers /step from a list of scripted handlers, then normally. It keeps what it was sent."""

    def __init__(self, *steps) -> None:
        self.steps, self.seen, self.deleted, self.headers = list(steps), [], asyncio.Queue(), []
        self.resets, self.names_server, self.probes = [], None, 0
        self.health: dict = {"env": "e"}
        self.close_reply = '{"closed": true}'
        self.on_reset = self.on_health = None
        app = web.Application(client_max_size=1 << 30)
        app.add_routes([web.post("/reset", self._reset), web.post("/step", self._step)])
        app.add_routes(
            [
                web.delete("/session/{id}", self._delete),
                web.get("/schema", self._schema),
                web.get("/health", self._health),
            ]
        )
        self.server = TestServer(app)

    async def __aenter__(self) -> Script:
        await self.server.start_server()
        self.url = str(self.server.make_url("")).rstrip("/")
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.server.close()

    async def _reset(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.resets.append(body)
        self.headers.append(request.headers)
        if self.on_reset:
            return await self.on_reset(request, body)
        return web.json_response({"session_id": body["session_id"], "observation": "hi", "server": self.names_server})

    async def _step(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(body)
        if self.steps:
            return await self.steps.pop(0)(request, body)
        return ok(body)

    async def _delete(self, request: web.Request) -> web.StreamResponse:
        self.deleted.put_nowait(request.match_info["id"])
        return web.Response(text=self.close_reply, content_type="application/json")

    async def _health(self, request: web.Request) -> web.StreamResponse:
        self.probes += 1
        if self.on_health:
            return await self.on_health(request, {})
        return web.json_response(self.health)

    async def _schema(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"env": "scripted", "action": "text", "capacity": 3})


def ok(body: dict, **fields) -> web.Response:
    return web.json_response(
        {"session_id": body["session_id"], "step_id": body["step_id"], "observation": "fine", **fields}
    )


async def hang_up(request, body):
    request.transport.close()
    return web.Response()


def status(code: int, text: str = "sorry", **headers: str):
    async def answer(request, body):
        return web.Response(status=code, text=text, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return answer


def outcome(name: str, **signals):
    async def answer(request, body):
        return ok(body, outcome=name, signals=signals)

    return answer


async def stall(request, body):
    await asyncio.sleep(30)
    return ok(body)


def client(*scripts: Script, **kwargs) -> EnvClient:
    limits = {"step_timeout_s": 60.0} | {f.name: kwargs.pop(f.name) for f in fields(EnvLimits) if f.name in kwargs}
    return EnvClient(
        {"e": [s.url for s in scripts]},
        limits={"e": EnvLimits(**limits)},
        **{"backoff_s": 0.01, "probe_pause_s": 0.02, **kwargs},
    )


async def one_step(c: EnvClient, action: str = "a"):
    async with c.session("e", {"label": "1"}, seed=7) as s:
        await s.reset()
        return await s.step(action, step_id=0)
