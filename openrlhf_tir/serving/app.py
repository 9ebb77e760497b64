"""Server: the rollout actor over HTTP, for everyone but our own controller (which calls the actor through Ray).

    POST /v1/groups                GroupRequest -> 202 {"id"}; ?stream=true: NDJSON, a trajectory per line as it
                                   finishes (groups.py)
    POST /generate                 token ids in -> token ids, log-probs and weight versions out
    POST /sessions, /agent/tasks   traced sessions: any OpenAI client is the rollout loop (traced/)
    GET  /health  /metrics  /openapi.json      POST /pause  /resume
    anything else                  vLLM's own OpenAI app on the same engine

Every route but /health wants the bearer token when there is one; connections, bodies and requests at once are limited
(http_guard); over a bound the answer is 429 with Retry-After. What no engine can answer is 422 before it reaches one,
and no fault of the engine's: token ids beyond the vocabulary, a prompt without room, an absurd temperature or seed. Who
hangs up gives /generate up. Runs inside the actor's event loop; `service` owns everything behind the routes.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import nullcontext
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Annotated, Any, Protocol

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field

from ..episodes.agent_broker import AgentBroker
from ..errors import ConfigError, InfraError, QueueFull, RequestRefused, Unavailable
from ..http_guard.connections import ConnectionLimits, uvicorn_options
from ..http_guard.guard import BodyLimits, Guard
from ..http_guard.json_body import answer_malformed
from ..http_guard.leaving import answer_leavers, unless_client_leaves
from ..http_guard.slots import Bounded, Slots
from ..types import Completion, EngineBounds, Sampling
from .groups import GroupService, Temperature, group_routes
from .openai_errors import OpenAIErrors
from .openapi import document
from .session_routes import SystemFolded, session_routes

MAX_TOKENS = 1 << 24
"""No model's context is longer; the engine's own bound is checked besides."""


class GenerateRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    token_ids: list[Annotated[int, Field(ge=0, lt=1 << 31)]] = Field(min_length=1)
    max_tokens: int = Field(ge=1, le=MAX_TOKENS)
    stop: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(
        default_factory=list, max_length=16, description="kept in the answer"
    )
    temperature: Temperature = 1.0
    top_p: float = Field(1.0, ge=1e-6, le=1, description="smaller ones leave no token")
    seed: int | None = Field(None, ge=0, lt=1 << 63)


class GenerateReply(BaseModel):
    """All lists have one entry per sampled token."""

    token_ids: list[int]
    logprobs: list[float] = Field(
        description=(
            "of the policy that sampled the token: at temperature 1, or as sampled in a run whose rollout is not"
        )
    )
    versions: list[int] = Field(description="learner updates behind the weights that sampled the token")
    text: str
    finish_reason: str = Field(description="stop | length | abort")
    stop_reason: str | int | None = Field(None, description="the stop string that ended it")


class RolloutService(GroupService, Protocol):
    """What is behind the routes. InfraError becomes 503, QueueFull 429; RequestRefused and ConfigError 422."""

    agents: AgentBroker
    """Sessions, and tasks on offer."""
    bounds: EngineBounds

    async def generate(self, token_ids: list[int], sampling: Sampling) -> Completion: ...
    def health(self) -> dict[str, Any]: ...
    def metrics(self) -> str:
        """Returns the metrics as Prometheus text."""

    async def pause(self) -> None: ...
    async def resume(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ServerLimits:
    max_groups: int = 64
    """How many groups may run at once."""
    max_requests: int = 1024
    """/generate calls at once, and as many requests to vLLM's app."""
    max_sessions: int = 1024
    """Sessions that were opened over HTTP, at once. Those of training groups are bounded by the pipeline."""
    bodies: BodyLimits = field(default_factory=lambda: BodyLimits(max_body_bytes=8 << 20))
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    kept_groups: int = 256
    """Finished groups that can still be fetched; older ones are forgotten."""
    retry_after_s: int = 1


def build_app(
    service: RolloutService, *, token: str | None, vllm_app: Any = None, limits: ServerLimits | None = None
) -> FastAPI:
    """`token` None: no authentication, for loopback only (`serve` refuses the rest). `vllm_app` is any ASGI app."""
    limits = limits or ServerLimits()
    app = FastAPI(title="openrlhf_tir rollout", docs_url=None, redoc_url=None)
    app.state.has_token, app.state.connections = token is not None, limits.connections
    app.add_middleware(Guard, token=token, limits=limits.bodies)
    app.add_middleware(OpenAIErrors)
    answer_malformed(app)
    answer_leavers(app)

    def slots(limit: int, what: str) -> Slots:
        return Slots(limit, what, limits.retry_after_s)

    @app.exception_handler(InfraError)
    async def infra_failed(request: Request, e: InfraError) -> JSONResponse:
        return JSONResponse({"error": e.reason, "detail": str(e)}, status_code=503)

    @app.exception_handler(QueueFull)
    async def queue_full(request: Request, e: QueueFull) -> JSONResponse:
        return JSONResponse({"error": e.reason, "detail": str(e)}, 429, {"Retry-After": str(e.retry_after_s)})

    @app.exception_handler(RequestRefused)
    @app.exception_handler(ConfigError)
    async def refused(request: Request, e: RequestRefused | ConfigError) -> JSONResponse:
        return JSONResponse({"error": "request_refused", "detail": str(e)}, status_code=422)

    app.include_router(group_routes(service, slots(limits.max_groups, "groups"), limits.kept_groups))
    request_slots = slots(limits.max_requests, "requests")

    @app.post(
        "/generate", tags=["engine"], response_model=GenerateReply, responses={429: {"description": "see Retry-After"}}
    )
    async def generate(body: GenerateRequest, request: Request) -> dict[str, Any]:
        """Token ids in, token ids out: nothing is tokenised on the way."""
        _refuse(body, service.bounds)
        sampling = Sampling(body.max_tokens, tuple(body.stop), body.temperature, body.top_p, body.seed)
        with request_slots.held():
            c = await unless_client_leaves(request.receive, service.generate(body.token_ids, sampling))
        arrays = {"token_ids": c.token_ids.tolist(), "logprobs": c.logprobs.tolist(), "versions": c.versions.tolist()}
        return arrays | {"text": c.text, "finish_reason": c.finish_reason, "stop_reason": c.stop_reason}

    @app.get("/health", tags=["engine"])
    async def health() -> dict[str, Any]:
        """Says whether the actor is well; the only route that needs no token."""
        return service.health()

    @app.get("/metrics", tags=["engine"], response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        """Prometheus text: engine, queue, environments, sessions."""
        return PlainTextResponse(service.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.post("/pause", tags=["engine"])
    async def pause() -> dict[str, bool]:
        """Freeze every request; new ones wait. A weight push goes through, and lifts the pause for its canary."""
        await service.pause()
        return {"paused": True}

    @app.post("/resume", tags=["engine"])
    async def resume() -> dict[str, bool]:
        await service.resume()
        return {"paused": False}

    if vllm_app is not None:
        bounded = Bounded(vllm_app, slots(limits.max_requests, "requests to the OpenAI app"))
        takes_system = getattr(getattr(vllm_app, "state", None), "takes_system", True)
        sessions = slots(limits.max_sessions, "sessions")
        session_routes(app, service.agents, bounded, sessions, takes_system=takes_system)
        app.mount("/", bounded if takes_system else SystemFolded(bounded))
    document(app, vllm_app, token is not None)
    return app


def _refuse(body: GenerateRequest, bounds: EngineBounds) -> None:
    """Raises RequestRefused for what the engine has no answer to."""
    if (worst := max(body.token_ids)) >= bounds.vocab_size:
        raise RequestRefused(f"token_ids: {worst} is beyond the vocabulary, whose ids end at {bounds.vocab_size - 1}.")
    if len(body.token_ids) >= bounds.max_model_len:
        raise RequestRefused(
            f"token_ids: {len(body.token_ids)} tokens leave no room to answer in {bounds.max_model_len}. Send fewer."
        )
    if body.max_tokens > bounds.max_model_len:
        raise RequestRefused(
            f"max_tokens: {body.max_tokens} is more than prompt and answer may have together,"
            f" {bounds.max_model_len}. Ask for less."
        )


async def serve(app: FastAPI, host: str = "127.0.0.1", port: int = 0) -> tuple[asyncio.Task, int]:
    """Run `app` in this event loop; port 0 picks a free one. Connections are accepted when this returns. Cancel the
    task to stop.

    Raises ConfigError when it would be reachable from other machines without a token or cannot bind, Unavailable when
    the port is in use."""
    if not is_loopback(host) and not app.state.has_token:
        raise ConfigError(
            f"A rollout server on {host} is open to the network and has no token."
            " Set a bearer token, or bind 127.0.0.1."
        )
    listener = bound(host, port)
    listener.listen(1024)
    server = _Server(
        uvicorn.Config(
            app, log_level="warning", access_log=False, lifespan="off", **uvicorn_options(app.state.connections)
        )
    )
    return (
        asyncio.create_task(_until_cancelled(server, listener), name=f"http {host}:{listener.getsockname()[1]}"),
        listener.getsockname()[1],
    )


def bound(host: str, port: int) -> socket.socket:
    """A socket of that address; port 0 picks a free one. Raises ConfigError when there is no such address here,
    Unavailable when the port is in use."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as e:
        listener.close()
        # in use, maybe by the actor that this one replaces
        kind = Unavailable if e.errno == errno.EADDRINUSE else ConfigError
        raise kind(f"Cannot listen on {host}:{port}: {e.strerror}. Use port 0 for a free one.") from e
    return listener


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


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
