"""A rollout actor over HTTP, for everyone but the run's own controller, which calls the actor through Ray.

    POST /v1/groups                GroupRequest -> 202 {"id"}; with ?stream=true NDJSON, one line per trajectory as it
                                   finishes (groups.py)
    POST /generate                 token ids in -> token ids, log-probs and weight versions out
    POST /sessions, /agent/tasks   traced sessions: any OpenAI client is the rollout loop (session_routes.py)
    GET  /health  /metrics  /openapi.json      POST /pause  /resume
    anything else                  vLLM's own OpenAI app on the same engine

Every route except /health needs the bearer token if there is one. Connections, bodies and concurrent requests are
limited (http_guard); over a limit the status is 429 with Retry-After. A request that no engine can answer gets 422
before it reaches one, and is no fault of the engine: token ids beyond the vocabulary, a prompt that leaves no room, an
absurd temperature or seed. A client that disconnects cancels its /generate. The server runs in the actor's event loop;
`service` owns everything behind the routes.
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

from ...data.template_shows import Shows
from ...errors import ConfigError, InfraError, QueueFull, RequestRefused, Unavailable
from ...http_guard.connections import ConnectionLimits, uvicorn_options
from ...http_guard.guard import BodyLimits, Guard
from ...http_guard.json_body import answer_malformed
from ...http_guard.leaving import answer_leavers, unless_client_leaves
from ...http_guard.slots import Bounded, Slots
from ...types import Completion, EngineBounds, Sampling
from ..agent_broker import AgentBroker
from .groups import GroupService, Temperature, group_routes
from .openai_errors import OpenAIErrors
from .openapi import document
from .session_routes import SystemFolded, ToolsRefused, session_routes

MAX_TOKENS = 1 << 24
"""No model has a longer context. The engine's own bound is checked as well."""


class GenerateRequest(BaseModel):
    """Body of POST /generate."""

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
    """The work behind the routes. InfraError becomes status 503, QueueFull 429, RequestRefused and ConfigError 422."""

    agents: AgentBroker
    """Sessions, and tasks on offer."""
    bounds: EngineBounds

    async def generate(self, token_ids: list[int], sampling: Sampling) -> Completion:
        """Continue token ids."""

    def health(self) -> dict[str, Any]:
        """Return the state of the actor, as JSON can hold it."""

    def metrics(self) -> str:
        """Return the metrics as Prometheus text."""

    async def pause(self) -> None:
        """Freeze all requests of the engine."""

    async def resume(self) -> None:
        """Let them go on."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of one server."""

    max_groups: int = 64
    """Groups that run at once."""
    max_requests: int = 1024
    """/generate calls at once, and the same number of requests to vLLM's app."""
    max_sessions: int = 1024
    """Sessions opened over HTTP, at once. Sessions of training groups are limited by the pipeline."""
    bodies: BodyLimits = field(default_factory=lambda: BodyLimits(max_body_bytes=8 << 20))
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    kept_groups: int = 256
    """Finished groups that can still be fetched; older ones are removed."""
    retry_after_s: int = 1


def build_app(
    service: RolloutService, *, token: str | None, vllm_app: Any = None, limits: ServerLimits | None = None
) -> FastAPI:
    """Return the app of a rollout actor.

    Args:
        service: The work behind the routes.
        token: The bearer token. None: no authentication, which `serve` allows on the loopback only.
        vllm_app: The ASGI app for all other paths; None: there is none.
        limits: Limits; the default ones if not given.
    """
    limits = limits or ServerLimits()
    app = FastAPI(title="openrlhf_tir rollout", docs_url=None, redoc_url=None)
    app.state.has_token = token is not None
    app.state.connections = limits.connections
    app.add_middleware(Guard, token=token, limits=limits.bodies)
    app.add_middleware(OpenAIErrors)
    answer_malformed(app)
    answer_leavers(app)

    def slots(limit: int, name: str) -> Slots:
        return Slots(limit, name, limits.retry_after_s)

    @app.exception_handler(InfraError)
    async def infra_failed(request: Request, error: InfraError) -> JSONResponse:
        return JSONResponse({"error": error.reason, "detail": str(error)}, status_code=503)

    @app.exception_handler(QueueFull)
    async def queue_full(request: Request, error: QueueFull) -> JSONResponse:
        body = {"error": error.reason, "detail": str(error)}
        return JSONResponse(body, 429, {"Retry-After": str(error.retry_after_s)})

    @app.exception_handler(RequestRefused)
    @app.exception_handler(ConfigError)
    async def refused(request: Request, error: RequestRefused | ConfigError) -> JSONResponse:
        return JSONResponse({"error": "request_refused", "detail": str(error)}, status_code=422)

    app.include_router(group_routes(service, slots(limits.max_groups, "groups"), limits.kept_groups))
    request_slots = slots(limits.max_requests, "requests")

    @app.post(
        "/generate", tags=["engine"], response_model=GenerateReply, responses={429: {"description": "see Retry-After"}}
    )
    async def generate(body: GenerateRequest, request: Request) -> dict[str, Any]:
        """Continue token ids, and return token ids: nothing is tokenised on the way."""
        _check_bounds(body, service.bounds)
        sampling = Sampling(body.max_tokens, tuple(body.stop), body.temperature, body.top_p, body.seed)
        with request_slots.held():
            completion = await unless_client_leaves(request.receive, service.generate(body.token_ids, sampling))
        return {
            "token_ids": completion.token_ids.tolist(),
            "logprobs": completion.logprobs.tolist(),
            "versions": completion.versions.tolist(),
            "text": completion.text,
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }

    @app.get("/health", tags=["engine"])
    async def health() -> dict[str, Any]:
        """Return whether the actor is well. The only route that needs no token."""
        return service.health()

    @app.get("/metrics", tags=["engine"], response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        """Return figures of engine, queue, environments and sessions as Prometheus text."""
        return PlainTextResponse(service.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.post("/pause", tags=["engine"])
    async def pause() -> dict[str, bool]:
        """Freeze every request; new ones wait. A weight push goes on, and lifts the pause for its canary."""
        await service.pause()
        return {"paused": True}

    @app.post("/resume", tags=["engine"])
    async def resume() -> dict[str, bool]:
        """Let requests go on after /pause."""
        await service.resume()
        return {"paused": False}

    if vllm_app is not None:
        state = getattr(vllm_app, "state", None)
        answering = vllm_app if getattr(state, "parses_calls", True) else ToolsRefused(vllm_app)
        bounded = Bounded(answering, slots(limits.max_requests, "requests to the OpenAI app"))
        template_shows = getattr(state, "template_shows", Shows())
        sessions = slots(limits.max_sessions, "sessions")
        session_routes(app, service.agents, bounded, sessions, template_shows)
        app.mount("/", bounded if template_shows.system else SystemFolded(bounded))
    document(app, vllm_app, token is not None)
    return app


def _check_bounds(body: GenerateRequest, bounds: EngineBounds) -> None:
    """Raise RequestRefused for a request that the engine cannot answer."""
    largest = max(body.token_ids)
    if largest >= bounds.vocab_size:
        raise RequestRefused(
            f"token_ids: {largest} is beyond the vocabulary, whose ids end at {bounds.vocab_size - 1}."
        )
    if len(body.token_ids) >= bounds.max_model_len:
        raise RequestRefused(
            f"token_ids: {len(body.token_ids)} tokens leave no room to answer in {bounds.max_model_len}. Send fewer."
        )
    if body.max_tokens > bounds.max_model_len:
        raise RequestRefused(
            f"max_tokens: {body.max_tokens} is more than the {bounds.max_model_len} tokens that prompt and answer may"
            " have together. Ask for less."
        )


async def serve(app: FastAPI, host: str = "127.0.0.1", port: int = 0) -> tuple[asyncio.Task[None], int]:
    """Run an app in this event loop. Connections are accepted when this returns.

    Args:
        app: An app of `build_app`.
        host: The address to listen on.
        port: The port; 0 picks a free one.

    Returns:
        The task that serves, to be cancelled to stop; and the port.

    Raises:
        ConfigError: It would be open to other machines without a token, or there is no such address.
        Unavailable: The port is in use.
    """
    if not is_loopback(host) and not app.state.has_token:
        raise ConfigError(
            f"A rollout server on {host} is open to the network and has no token."
            " Set a bearer token, or bind 127.0.0.1.",
            code="token",
        )
    listener = bound(host, port)
    listener.listen(1024)
    options = uvicorn_options(app.state.connections)
    server = _Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", **options))
    actual_port = listener.getsockname()[1]
    serving = asyncio.create_task(_serve_until_cancelled(server, listener), name=f"http {host}:{actual_port}")
    return serving, actual_port


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address; port 0 picks a free port.

    Raises:
        ConfigError: This machine has no such address.
        Unavailable: The port is in use.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as e:
        listener.close()
        # It may be in use by the actor that this one replaces.
        kind = Unavailable if e.errno == errno.EADDRINUSE else ConfigError
        raise kind(f"Cannot listen on {host}:{port}: {e.strerror}. Use port 0 for a free one.") from e
    return listener


class _Server(uvicorn.Server):
    """A uvicorn server that leaves the process's signal handlers alone: the actor has its own."""

    def capture_signals(self):
        return nullcontext()


async def _serve_until_cancelled(server: uvicorn.Server, listener: socket.socket) -> None:
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
    """Return True if the address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
