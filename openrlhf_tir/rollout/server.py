"""Server: the rollout actor over HTTP, for everyone but our own controller (which calls the actor through Ray).

    POST /v1/groups              GroupRequest -> 202 {"id"}; ?stream=true: NDJSON, a trajectory per line as it finishes, then {"done"}
    GET  /v1/groups/{id}         {"status": running | done | failed, "trajectories": [...]}
    POST /generate               token ids in -> token ids, log-probs and weight versions out
    GET  /health  GET /metrics   POST /pause  POST /resume
    anything else                vLLM's own OpenAI app on the same engine

Every route but /health wants the bearer token when there is one; bodies are limited; over a bound the answer is 429 with
Retry-After. Runs inside the actor's event loop; `service` owns everything behind the routes.
"""

from __future__ import annotations

import asyncio
import json
import socket
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import aclosing, contextmanager, nullcontext
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Protocol

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import Receive, Scope, Send

from ..errors import ConfigError, InfraError
from ..types import Completion, Sampling, Trajectory
from .http_guard import BearerToken, BodyLimit


class GroupRequest(BaseModel):
    """One task, to be sampled n times in its environment."""

    model_config = ConfigDict(extra="forbid")
    prompt: str = Field(min_length=1, description="rendered prompt text")
    label: str = Field("", description="what the reward compares with")
    env: str | None = Field(None, description="environment; unset: the actor's own")
    meta: dict[str, Any] = Field(default_factory=dict)
    n: int | None = Field(None, ge=1, le=1024, description="samples; unset: rollout.n_samples_per_prompt")
    temperature: float | None = Field(None, ge=0, description="unset: rollout.temperature")


class GenerateRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    token_ids: list[int] = Field(min_length=1)
    max_tokens: int = Field(ge=1)
    stop: list[str] = Field(default_factory=list, description="kept in the answer")
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int | None = None


class RolloutService(Protocol):
    """What is behind the routes. InfraError becomes 503."""

    def run_group(self, request: GroupRequest) -> AsyncIterator[Trajectory]:
        """Trajectories as they finish. Closing the iterator early gives the group up."""

    async def generate(self, token_ids: list[int], sampling: Sampling) -> Completion: ...
    def health(self) -> dict[str, Any]: ...
    def metrics(self) -> str:
        """Prometheus text."""

    async def pause(self) -> None: ...
    async def resume(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ServerLimits:
    max_groups: int = 64
    """Groups running at once."""
    max_requests: int = 1024
    """/generate calls at once."""
    max_body_bytes: int = 8 << 20
    kept_groups: int = 256
    """Finished groups that can still be fetched; older ones are forgotten."""
    retry_after_s: int = 1


@dataclass(slots=True)
class _Group:
    task: asyncio.Task | None = None
    status: str = "running"
    trajectories: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None


class _Slots:
    """At most `limit` at once; 429 beyond."""

    def __init__(self, limit: int, what: str, retry_after_s: int) -> None:
        self.limit, self.what, self.retry_after_s, self.used = limit, what, retry_after_s, 0

    def take(self) -> None:
        if self.used >= self.limit:
            raise HTTPException(429, f"{self.used} {self.what} are running, which is the limit. Try again.", {"Retry-After": str(self.retry_after_s)})
        self.used += 1

    def give_back(self) -> None:
        self.used -= 1

    @contextmanager
    def held(self):
        self.take()
        try:
            yield
        finally:
            self.give_back()


def build_app(service: RolloutService, *, token: str | None, vllm_app: Any = None, limits: ServerLimits | None = None) -> FastAPI:
    """`token` None: no authentication, for loopback only (`serve` refuses the rest). `vllm_app` is any ASGI app."""
    limits = limits or ServerLimits()
    app = FastAPI(title="openrlhf_tir rollout", docs_url=None, redoc_url=None)
    app.state.has_token = token is not None
    app.add_middleware(BodyLimit, max_bytes=limits.max_body_bytes)
    app.add_middleware(BearerToken, token=token, open_paths=frozenset({"/health"}))
    group_slots = _Slots(limits.max_groups, "groups", limits.retry_after_s)
    request_slots = _Slots(limits.max_requests, "requests", limits.retry_after_s)
    groups: OrderedDict[str, _Group] = OrderedDict()

    @app.exception_handler(InfraError)
    async def infra_failed(request: Request, e: InfraError) -> JSONResponse:
        return JSONResponse({"error": e.reason, "detail": str(e)}, status_code=503)

    @app.post("/v1/groups")
    async def post_group(body: GroupRequest, stream: bool = False):
        group_slots.take()
        if stream:
            return _GroupStream(_ndjson(service, body), group_slots)
        group_id, group = uuid.uuid4().hex, _Group()
        group.task = asyncio.create_task(_collect(service, body, group, group_slots), name=f"group {group_id}")
        groups[group_id] = group
        for old in [i for i, g in groups.items() if g.status != "running"][: max(0, len(groups) - limits.max_groups - limits.kept_groups)]:
            del groups[old]
        return JSONResponse({"id": group_id}, status_code=202)

    @app.get("/v1/groups/{group_id}")
    async def get_group(group_id: str) -> dict[str, Any]:
        if (group := groups.get(group_id)) is None:
            raise HTTPException(404, f"No group {group_id!r}: never posted here, or forgotten after {limits.kept_groups} newer ones.")
        return {"id": group_id, "status": group.status, "trajectories": group.trajectories, "error": group.error}

    @app.post("/generate")
    async def generate(body: GenerateRequest) -> dict[str, Any]:
        with request_slots.held():
            c = await service.generate(body.token_ids, Sampling(body.max_tokens, tuple(body.stop), body.temperature, body.top_p, body.seed))
        arrays = {"token_ids": c.token_ids.tolist(), "logprobs": c.logprobs.tolist(), "versions": c.versions.tolist()}
        return arrays | {"text": c.text, "finish_reason": c.finish_reason, "stop_reason": c.stop_reason}

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return service.health()

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(service.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.post("/pause")
    async def pause() -> dict[str, bool]:
        await service.pause()
        return {"paused": True}

    @app.post("/resume")
    async def resume() -> dict[str, bool]:
        await service.resume()
        return {"paused": False}

    if vllm_app is not None:
        app.mount("/", vllm_app)
    return app


def trajectory_json(t: Trajectory) -> dict[str, Any]:
    """A trajectory on the wire. Segments keep what the trainer needs: source, ids, log-probs, versions."""
    return {
        "index": t.index,
        "prompt_ids": t.prompt_ids.tolist(),
        "segments": [
            {"source": s.source, "token_ids": s.token_ids.tolist(), "logprobs": s.logprobs.tolist(), "versions": s.versions.tolist(), "text": s.text}
            for s in t.segments
        ],
        "calls": [{"action": c.action, "observation": c.observation, "outcome": c.outcome, "signals": dict(c.signals), "seconds": c.seconds} for c in t.calls],
        "finish_reason": t.finish_reason,
        "stop_reason": t.stop_reason,
        "failed": t.failed,
        "reward": t.reward,
        "parts": t.parts,
    }


async def _collect(service: RolloutService, body: GroupRequest, group: _Group, slots: _Slots) -> None:
    try:
        async for t in service.run_group(body):
            group.trajectories.append(trajectory_json(t))
        group.status = "done"
    except InfraError as e:
        group.status, group.error = "failed", f"{e.reason}: {e}"
    except BaseException as e:
        group.status, group.error = "failed", type(e).__name__
        raise
    finally:
        slots.give_back()


async def _ndjson(service: RolloutService, body: GroupRequest) -> AsyncIterator[str]:
    """The status line is long gone when a group fails half-way: the last line says so instead."""
    count = 0
    try:
        async with aclosing(service.run_group(body)) as trajectories:
            async for t in trajectories:
                count += 1
                yield json.dumps(trajectory_json(t)) + "\n"
        yield json.dumps({"done": True, "trajectories": count}) + "\n"
    except InfraError as e:
        yield json.dumps({"done": False, "trajectories": count, "error": e.reason, "detail": str(e)}) + "\n"


class _GroupStream(StreamingResponse):
    """Gives the group up as soon as the client leaves, and its slot back however the response ends, even before it began."""

    def __init__(self, lines: AsyncIterator[str], slots: _Slots) -> None:
        super().__init__(lines, media_type="application/x-ndjson")
        self.slots = slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # From ASGI 2.4 on starlette notices that the client left only when the next send fails: for a group, minutes later.
        older = {**scope, "asgi": {**scope["asgi"], "spec_version": "2.3"}}
        try:
            await super().__call__(older, receive, send)
        finally:
            self.slots.give_back()


async def serve(app: FastAPI, host: str = "127.0.0.1", port: int = 0) -> tuple[asyncio.Task, int]:
    """Run `app` in this event loop; port 0 picks a free one. Connections are accepted when this returns. Cancel the task to stop.

    Raises ConfigError when it would be reachable from other machines without a token, or cannot bind.
    """
    if not _is_loopback(host) and not app.state.has_token:
        raise ConfigError(f"A rollout server on {host} is open to the network and has no token. Set a bearer token, or bind 127.0.0.1.")
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as e:
        listener.close()
        raise ConfigError(f"Cannot listen on {host}:{port}: {e.strerror}. Use port 0 for a free one.") from e
    listener.listen(1024)
    server = _Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
    return asyncio.create_task(_until_cancelled(server, listener), name=f"http {host}:{listener.getsockname()[1]}"), listener.getsockname()[1]


class _Server(uvicorn.Server):
    """Leaves the process's signal handlers alone: the actor has its own."""

    def capture_signals(self):
        return nullcontext()


async def _until_cancelled(server: uvicorn.Server, listener: socket.socket) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="uvicorn")
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        server.should_exit = server.force_exit = True
        await serving
        raise
    finally:
        listener.close()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
