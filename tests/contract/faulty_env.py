"""An environment server written by hand, without env_servers: it keeps the protocol but for the faults it is told."""

from __future__ import annotations

import asyncio
import itertools
import json
import time

from aiohttp import web

FAULTS = {
    "schema without capacity": "schema and health",
    "health of another env": "schema and health",
    "reset names another session": "a valid action is ok",
    "valid action fails": "a valid action is ok",
    "reset opens anew": "a retried /reset is one session",
    "reset takes any seed": "a retried /reset is one session",
    "retries execute": "a retried step runs once",
    "retries execute unseen": "a retried step runs once",
    "forgets replies": "a retried step runs once",
    "used ids answered": "409 for a used step_id",
    "sessions out of nothing": "404 without a session",
    "closed sessions answer": "404 without a session",
    "malformed is 500": "422 for a malformed request",
    "token not asked": "401 without the token",
    "large bodies taken": "413 for a large body",
    "failure is ok": "a failing action",
    "failure breaks the session": "a failing action",
    "done and truncated": "end and rewards",
    "infinite reward": "end and rewards",
    "random observations": "determinism under a seed",
    "claims to keep state": "state",
    "sessions share state": "session isolation",
    "serial crash": "concurrency",
    "batch loses a line": "batches",
    "batch refuses all": "batches",
    "deadline ignored": "deadline",
    "timeout is ok": "deadline",
    "timeout is late": "deadline",
    "works on after the deadline": "deadline",
    "full is 503": "capacity",
    "full without Retry-After": "capacity",
    "sessions stay": "leaks",
    "memory stays": "leaks",
}
"""Fault -> the check that must find it."""
LATE_S = 0.5
"""Seconds by which "timeout is late" misses the deadline of a step."""
TOKEN = "t0ken"
MAX_BODY = 4 << 20


class FaultyEnv:
    def __init__(self, *faults: str, queue: int = 24) -> None:
        unknown = set(faults) - set(FAULTS)
        if unknown:
            raise ValueError(f"Unknown faults {unknown}")
        self.faults, self.queue = faults, queue
        self.sessions: dict[str, dict] = {}
        self.executed = self.running = self.memory = 0
        self.ids, self.last_action = itertools.count(), ""

    def has(self, fault: str) -> bool:
        return fault in self.faults

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 30, middlewares=[self.guard])
        app.add_routes(
            [web.post("/reset", self.reset), web.post("/step", self.step), web.post("/step_batch", self.step_batch)]
        )
        app.add_routes([web.delete("/session/{id}", self.close), web.get("/health", self.health)])
        app.add_routes([web.get("/schema", self.schema), web.get("/metrics", self.metrics)])
        return app

    @web.middleware
    async def guard(self, request: web.Request, handler) -> web.StreamResponse:
        if (
            request.path != "/health"
            and request.headers.get("Authorization") != f"Bearer {TOKEN}"
            and not self.has("token not asked")
        ):
            return web.json_response({"detail": "token"}, status=401)
        if (request.content_length or 0) > MAX_BODY and not self.has("large bodies taken"):
            return web.json_response({"detail": "large"}, status=413, headers={"Connection": "close"})
        return await handler(request)

    async def reset(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        session = body.get("session_id")
        opened_by = (body.get("task", {}), body.get("seed", 0))
        if session in self.sessions and self.has("reset opens anew"):
            self.sessions[f"{session}-{next(self.ids)}"] = {"opened_by": opened_by, "answers": {}}
        elif session in self.sessions:
            if self.sessions[session]["opened_by"] != opened_by and not self.has("reset takes any seed"):
                return web.json_response({"detail": "other seed"}, status=409)
        else:
            self.sessions[session] = {"opened_by": opened_by, "answers": {}}
        return web.json_response(
            {"session_id": "x" if self.has("reset names another session") else session, "observation": ""}
        )

    async def step(self, request: web.Request) -> web.StreamResponse:
        status, body, headers = await self.answer(await request.json())
        return web.json_response(body, status=status, headers=headers)

    async def answer(self, body: dict) -> tuple[int, dict, dict]:
        if (
            set(body) != {"session_id", "step_id", "action", "deadline_s"}
            or body["step_id"] < 0
            or isinstance(body["deadline_s"], str)
        ):
            return (500 if self.has("malformed is 500") else 422), {"detail": "malformed"}, {}
        session = self.sessions.get(body["session_id"])
        if session is None and self.has("sessions out of nothing"):
            session = self.sessions[body["session_id"]] = {"opened_by": ({}, 0), "answers": {}}
        if session is None or (session.get("closed") and not self.has("closed sessions answer")):
            return 404, {"detail": "no session"}, {}
        known = session["answers"].get(body["step_id"])
        if known and known[0] != body["action"] and not self.has("used ids answered"):
            return 409, {"detail": "used"}, {}
        if known is None or self.has("retries execute") or self.has("retries execute unseen"):
            if self.running >= self.queue:
                status = 503 if self.has("full is 503") else 429
                return status, {"detail": "full"}, {} if self.has("full without Retry-After") else {"Retry-After": "1"}
            self.running += 1
            task = asyncio.ensure_future(self.execute(session, body))
            known = session["answers"][body["step_id"]] = (body["action"], task)
        if self.has("forgets replies") and body["step_id"] == 1:
            session["answers"].pop(0, None)
        return 200, await asyncio.shield(known[1]), {}

    async def execute(self, session: dict, body: dict) -> dict:
        self.executed += not self.has("retries execute unseen")
        self.memory += 1 << 16
        action, fields, start = body["action"], {}, time.monotonic()
        delay_s, deadline_s = session["opened_by"][0].get("delay_s", 0.0), body["deadline_s"]
        if self.has("serial crash") and self.running > 8:
            fields["outcome"] = "env_error"
        if delay_s > deadline_s and not self.has("deadline ignored"):
            await asyncio.sleep(deadline_s + LATE_S * self.has("timeout is late"))
            fields["outcome"] = "ok" if self.has("timeout is ok") else "timeout"
            if not self.has("works on after the deadline"):
                self.running -= 1
        else:
            await asyncio.sleep(delay_s)
            self.running -= 1
        if self.has("valid action fails"):
            fields["outcome"] = "env_error"
        if action == "fail" or (self.has("failure breaks the session") and session.get("failed")):
            fields["outcome"] = "ok" if self.has("failure is ok") else "env_error"
            session["failed"] = True
        said = action
        if self.has("random observations") or self.has("retries execute unseen"):
            said = f"{action} {next(self.ids) if self.has('random observations') or body['step_id'] == 0 else ''}"
        if self.has("sessions share state"):
            said, self.last_action = f"{action} {self.last_action}", action
        return {
            "session_id": body["session_id"],
            "step_id": body["step_id"],
            "observation": said,
            "signals": {"seconds": time.monotonic() - start},
            **({"done": True, "truncated": True} if self.has("done and truncated") else {}),
            **({"reward": float("inf")} if self.has("infinite reward") else {}),
            **fields,
        }

    async def step_batch(self, request: web.Request) -> web.StreamResponse:
        lines = []
        for body in await request.json():
            status, answer, _ = await self.answer(body)
            if status != 200 and self.has("batch refuses all"):
                return web.json_response(answer, status=status)
            lines.append(
                answer
                if status == 200
                else {"session_id": body["session_id"], "step_id": body["step_id"], "outcome": "env_error"}
            )
        if self.has("batch loses a line"):
            lines.pop()
        return web.Response(
            text="".join(json.dumps(line) + "\n" for line in lines), content_type="application/x-ndjson"
        )

    async def close(self, request: web.Request) -> web.StreamResponse:
        session = self.sessions[request.match_info["id"]]
        if self.has("closed sessions answer") or (self.has("sessions stay") and self.executed > 200):
            session["closed"] = True
        else:
            del self.sessions[request.match_info["id"]]
        return web.json_response({"closed": True})

    async def health(self, request: web.Request) -> web.StreamResponse:
        env = "other" if self.has("health of another env") else "echo"
        return web.json_response({"env": env, "sessions": len(self.sessions), "capacity": 4, "running": self.running})

    async def schema(self, request: web.Request) -> web.StreamResponse:
        fields = {
            "stateful": self.has("claims to keep state"),
            **({} if self.has("schema without capacity") else {"capacity": 4}),
        }
        return web.json_response({"env": "echo", "action": "any text", **fields})

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        resident = (100 << 20) + (self.memory if self.has("memory stays") else 0)
        return web.Response(
            text=f'env_steps_total{{env="echo"}} {self.executed}\nprocess_resident_memory_bytes {resident}\n'
        )
