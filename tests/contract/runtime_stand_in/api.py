"""RuntimeStandIn: the routes of OpenHands' runtime API, over directories that play images. Tests make it fail through
`answers`, and kill containers."""

from __future__ import annotations

import secrets
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from .processes import killed, started

KEY = "the-api's-own-key"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


@dataclass
class StandInContainer:
    process: subprocess.Popen
    url: str
    session: str
    key: str
    image: str

    def kill(self) -> None:
        killed(self.process.pid)
        self.process.wait()


@dataclass
class RuntimeStandIn:
    directory: Path
    images: dict[str, Path]
    """Name -> what is /testbed there."""
    containers: dict[str, StandInContainer] = field(default_factory=dict)
    """Those that run, by id; `started` and `stopped` count them."""
    started: int = 0
    stopped: int = 0
    asked: Counter[str] = field(default_factory=Counter)
    """METHOD /first-part -> requests."""
    answers: dict[str, Answer] = field(default_factory=dict)
    """The same -> asked first; None: the request is answered as usual."""
    pod_status: str = "running"
    url: str = ""

    async def __aenter__(self) -> RuntimeStandIn:
        app = web.Application(middlewares=[self._first])
        routes = {"/image_exists": self.image_exists, "/sessions/{id}": self.session, "/runtime/{id}": self.runtime}
        app.add_routes(
            [
                *(web.get(path, handler) for path, handler in routes.items()),
                web.post("/start", self.start),
                web.post("/stop", self.stop),
            ]
        )
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._runner.cleanup()
        for container in self.containers.values():
            container.kill()

    @web.middleware
    async def _first(self, request: web.Request, handler: Callable) -> web.StreamResponse:
        if request.headers.get("X-API-Key") != KEY:
            return web.json_response({"detail": "Invalid API key"}, status=401)
        what = f"{request.method} /{request.path.split('/')[1]}"
        self.asked[what] += 1
        if what in self.answers and (answer := await self.answers[what](request)) is not None:
            return answer
        return await handler(request)

    async def image_exists(self, request: web.Request) -> web.Response:
        return web.json_response({"exists": request.query["image"] in self.images})

    async def start(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert {"image", "command", "working_dir", "environment", "session_id", "resource_factor"} <= set(body)
        name, key = f"c{self.started}", secrets.token_hex(8)
        self.started += 1
        self.containers[name] = self.run(name, body["image"], body["session_id"], key)
        return self.told(name)

    async def session(self, request: web.Request) -> web.Response:
        for name, container in self.containers.items():
            if container.session == request.match_info["id"]:
                return self.told(name)
        return web.json_response({"detail": "no such session"}, status=404)

    async def runtime(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        reasons = ["OOMKilled"] if self.pod_status == "crashloopbackoff" else []
        status = self.pod_status if name in self.containers else "not found"
        return web.json_response(
            {"runtime_id": name, "pod_status": status, "restart_count": len(reasons), "restart_reasons": reasons}
        )

    async def stop(self, request: web.Request) -> web.Response:
        container = self.containers.pop((await request.json())["runtime_id"], None)
        if container is None:
            return web.json_response({"detail": "no such runtime"}, status=404)
        container.kill()
        self.stopped += 1
        return web.json_response({})

    def told(self, name: str) -> web.Response:
        container = self.containers[name]
        return web.json_response(
            {"runtime_id": name, "url": container.url, "session_api_key": container.key, "status": "running"}
        )

    def run(self, name: str, image: str, session: str, key: str) -> StandInContainer:
        process, address = started(self.directory / name, self.images[image], key)
        return StandInContainer(process, f"http://{address}", session, key, image)
