"""python -m benchmarks.rollout.fault_server: an echo environment that breaks on demand, in a process of its own.

    POST /fault {"name": ..., "seconds": ...}    from now on /reset and /step have this fault ("": well again);
                                                 /health keeps saying ok
    GET  /sessions                               {"open": [ids], "resets": n, "steps": n}

The faults are "hang", "reset connection", "500", "invalid JSON", "wrong schema", "huge body", "env_error", "timeout",
"full" and "down". "down" closes the port and every connection and forgets all sessions, as a server that is killed
does, and comes back after `seconds`. "wait" is no fault: no /step is answered until another name is given."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from aiohttp import web

HUGE_BYTES = 64 << 20


class FaultServer:
    runner: web.AppRunner
    """The server of the last `start`."""

    def __init__(self, env: str, delay_s: float) -> None:
        self.env, self.delay_s, self.fault = env, delay_s, ""
        self.open: set[str] = set()
        self.resets = self.steps = self.port = 0
        self.goes_on = asyncio.Event()
        """Steps wait for it. It is cleared while the fault is "wait"."""
        self.goes_on.set()

    async def start(self) -> None:
        app = web.Application()
        app.add_routes(
            [web.post("/reset", self.reset), web.post("/step", self.step), web.delete("/session/{id}", self.close)]
        )
        app.add_routes([web.delete("/sessions/{owner}", self.close_owned), web.get("/sessions", self.show)])
        app.add_routes(
            [web.get("/health", self.health), web.get("/schema", self.schema), web.post("/fault", self.set_fault)]
        )
        self.runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self.runner.addresses[0][1]

    async def set_fault(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["name"] == "down":
            asyncio.get_running_loop().call_later(
                0.05, lambda: setattr(self, "outage", asyncio.ensure_future(self.go_down(body["seconds"])))
            )
        else:
            self.fault = body["name"]
            if self.fault == "wait":
                self.goes_on.clear()
            else:
                self.goes_on.set()
        return web.json_response({})

    async def go_down(self, seconds: float) -> None:
        await self.runner.cleanup()
        self.open.clear()
        await asyncio.sleep(seconds)
        await self.start()

    async def reset(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.resets += body["session_id"] not in self.open  # a request that is sent again opens no other session
        if self.fault in ("env_error", "timeout"):
            return await self.well(body)
        return await self.broken(request, body) or await self.well(body)

    async def well(self, body: dict) -> web.Response:
        self.open.add(body["session_id"])
        return web.json_response({"session_id": body["session_id"], "observation": ""})

    async def step(self, request: web.Request) -> web.StreamResponse:
        self.steps += 1
        body = await request.json()
        reply = {"session_id": body["session_id"], "step_id": body["step_id"]}
        if self.fault in ("env_error", "timeout"):
            return web.json_response(reply | {"outcome": self.fault})
        if (fault := await self.broken(request, body)) is not None:
            return fault
        if body["session_id"] not in self.open:
            return web.json_response({"detail": "no session"}, status=404)
        await asyncio.sleep(self.delay_s)
        await self.goes_on.wait()
        return web.json_response(reply | {"observation": body["action"]})

    async def broken(self, request: web.Request, body: dict) -> web.StreamResponse | None:
        match self.fault:
            case "hang":
                await asyncio.sleep(3600)
            case "reset connection":
                if request.transport is not None:
                    request.transport.abort()
                return web.Response()
            case "500":
                return web.json_response({"detail": "disk full"}, status=500)
            case "invalid JSON":
                return web.Response(text='{"session_id": "', content_type="application/json")
            case "wrong schema":
                return web.json_response(
                    {"session_id": body["session_id"], "step_id": 0, "output": "42", "reward": "very good"}
                )
            case "huge body":
                response = web.StreamResponse()
                await response.prepare(request)
                for _ in range(HUGE_BYTES >> 16):
                    await response.write(b'"' * (1 << 16))
                return response
            case "full":
                return web.json_response({}, status=429, headers={"Retry-After": "1"})
        return None

    async def close(self, request: web.Request) -> web.Response:
        self.open.discard(request.match_info["id"])
        return web.json_response({"closed": True})

    async def close_owned(self, request: web.Request) -> web.Response:
        owned = {s for s in self.open if s.startswith(request.match_info["owner"] + ".")}
        self.open -= owned
        return web.json_response({"closed": len(owned)})

    async def show(self, request: web.Request) -> web.Response:
        return web.json_response({"open": sorted(self.open), "resets": self.resets, "steps": self.steps})

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"env": self.env, "sessions": len(self.open)})

    async def schema(self, request: web.Request) -> web.Response:
        return web.json_response({"env": self.env, "action": "any text", "capacity": 1024})


async def serve(port_file: Path, env: str, delay_s: float) -> None:
    server = FaultServer(env, delay_s)
    await server.start()
    partial = port_file.with_name(port_file.name + ".partial")
    partial.write_text(str(server.port))
    partial.replace(port_file)
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port-file", type=Path, required=True)
    parser.add_argument("--env", default="echo")
    parser.add_argument("--delay-s", type=float, default=0.1)
    args = parser.parse_args()
    asyncio.run(serve(args.port_file, args.env, args.delay_s))
