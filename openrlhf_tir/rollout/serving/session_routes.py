"""Traced sessions over HTTP: take a task or open a session, point an OpenAI client at it, report the reward.

POST /agent/tasks            a training task, or 204     -> {session_id, base_url, prompt, label, meta}
POST /sessions               a session without a task    -> {session_id, base_url}
*    /sessions/{id}/v1/...   vLLM's OpenAI app, recorded
GET  /sessions/{id}          the trace so far
POST /sessions/{id}/reward   ends the session: its trajectory goes to its group, or back to the client that opened it
DELETE /sessions/{id}        abandons it
"""

from __future__ import annotations

import json
import logging
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat
from starlette.types import ASGIApp, Receive, Scope, Send

from ...data.template_shows import Shows
from ...engines.session_trace import AGENT_FACTS
from ...engines.sessions import AgentOutcome, AgentSession, SessionGone
from ...http_guard.guard import replayed
from ...http_guard.leaving import unless_client_leaves
from ...http_guard.slots import Slots
from ..agent_broker import AgentBroker
from ..group_runner import WHY_CHARS
from .groups import Temperature, trajectory_json
from .session_requests import SYSTEM_NOTE, TOOLS_NOTE, policy_request, wants_calls, without_system

log = logging.getLogger(__name__)
MAX_WAIT_S = 60.0
QUIET_S = 30.0
"""Seconds that a reward waits for requests of its session that are still being answered."""
CALLING_ROUTES = ("/chat/completions", "/responses", "/messages")
"""Ends of the paths whose answers have calls of tools."""
NO_PARSER = (
    "tools: this server finds no calls in the model's text. Start it with --vllm.tool_call_parser (hermes for Qwen's"
    " models); or send tool_choice none, which shows the tools to the model and leaves its text to you."
)


class TakeTask(BaseModel):
    """Body of POST /agent/tasks."""

    model_config = ConfigDict(extra="forbid")
    wait_s: float = Field(20.0, ge=0, le=MAX_WAIT_S, description="how long to wait for a task before 204")
    override_sampling: bool = Field(
        False, description="sample from the policy itself whatever temperature and penalties the requests name"
    )


class OpenSession(BaseModel):
    """Body of POST /sessions."""

    model_config = ConfigDict(extra="forbid")
    temperature: Temperature = Field(1.0, description="temperature of the session's requests, which they may leave out")
    override_sampling: bool = Field(False, description="as for a task")


class SessionInfo(BaseModel):
    """A session that was opened."""

    session_id: str
    base_url: str = Field(description="for OpenAI(base_url=...); the bearer token is its api_key")


class AgentTask(SessionInfo):
    """A task that an agent took, with its session."""

    prompt: str
    label: str = Field(description="what the reward compares with")
    env: str
    meta: dict[str, Any]
    extra: dict[str, Any] = Field(default_factory=dict, description="the other columns of the row")


class RewardRequest(BaseModel):
    """Body of POST /sessions/{id}/reward, which ends a session."""

    model_config = ConfigDict(extra="forbid")
    reward: float | None = Field(
        None, allow_inf_nan=False, description="None: the run's own reward judges the trajectory"
    )
    correct: bool | None = Field(None, description="for accuracy figures and filters; None: reward > 0")
    parts: dict[str, FiniteFloat] = Field(
        default_factory=dict, description="facts behind the reward; their means become metrics"
    )
    failed: str | None = Field(
        None, description="a fault of the agent's infrastructure, in words: nothing of the session is trained"
    )


class SessionEnd(BaseModel):
    """What was recorded of a session."""

    requests: int
    chains: int = Field(
        description="1 if every prompt continued the tokens before it; all are trained, each sampled token once"
    )
    model_tokens: int = Field(description="sampled tokens")
    branch_tokens: int = Field(description="sampled tokens outside of the longest chain")
    notes: list[str] = Field(description="options of its requests that were not followed")
    trajectory: dict[str, Any] | None = Field(None, description="only for a session without a task")


def session_routes(app: FastAPI, agents: AgentBroker, vllm_app: ASGIApp, slots: Slots, template_shows: Shows) -> None:
    """Add the routes of traced sessions to an app.

    Args:
        app: The app.
        agents: The sessions, and the tasks that agents can take.
        vllm_app: Answers the requests of the sessions.
        slots: Limits the open sessions without a task.
        template_shows: What the model's chat template shows of a request.
    """
    router = APIRouter(tags=["traced sessions"])

    @app.exception_handler(SessionGone)
    async def gone(request: Request, error: SessionGone) -> JSONResponse:
        return JSONResponse({"error": "session_gone", "detail": str(error)}, status_code=404)

    def info(session: AgentSession, request: Request) -> dict[str, str]:
        return {"session_id": session.id, "base_url": f"{request.base_url}sessions/{session.id}/v1"}

    @router.post("/agent/tasks", response_model=AgentTask, responses={204: {"description": "no task meanwhile"}})
    async def take_task(body: TakeTask, request: Request):
        """Take a training task (rollout.agent = "external").

        End it with its reward. It fails after a sixth of rollout.group_deadline_s in silence, 600 s at least.
        """
        session = await unless_client_leaves(
            request.receive, agents.take(body.wait_s, override_sampling=body.override_sampling), agents.give_back
        )
        if session is None:
            return Response(status_code=204)
        task = session.task
        assert task is not None, "agents take sessions with a task"
        row = {"prompt": task.prompt, "label": task.label, "env": task.env}
        return {**info(session, request), **row, "meta": dict(task.meta), "extra": dict(task.extra)}

    @router.post(
        "/sessions", status_code=201, response_model=SessionInfo, responses={429: {"description": "see Retry-After"}}
    )
    async def open_session(body: OpenSession, request: Request):
        """Open a session that is recorded and not trained, to see what an agent does or to collect data."""
        slots.take()
        session = agents.sessions.open(temperature=body.temperature, override_sampling=body.override_sampling)

        def close(outcome: object) -> None:
            agents.sessions.close(session)
            slots.give_back()

        session.outcome.add_done_callback(close)
        session.alive()
        return info(session, request)

    @router.get("/sessions/{session_id}")
    async def get_session(session_id: str) -> dict[str, Any]:
        """Return the trajectory as it would be if the session ended now."""
        session = agents.sessions.get(session_id)
        return trajectory_json(session.trace.trajectory(0, agents.codec))

    @router.post(
        "/sessions/{session_id}/reward",
        response_model=SessionEnd,
        responses={409: {"description": "a request is still being answered"}},
    )
    async def reward(session_id: str, body: RewardRequest):
        """End a session. Its trajectory enters the group of its task; without a task it is in the answer."""
        session = agents.sessions.get(session_id)
        if not await session.quiet(QUIET_S):
            raise HTTPException(
                409,
                f"{session.running} requests of session {session_id!r} were still being answered {QUIET_S:g} s later."
                " Await them, then post the reward.",
            )
        trajectory = session.trace.trajectory(0, agents.codec)
        if session.task is None:
            trajectory = await agents.finish(session)
            trajectory.reward = body.reward
            trajectory.parts |= body.parts
        if body.failed:
            task_or_session = session.task.prompt[:80] if session.task else session_id
            log.warning("an agent failed at %r: %s", task_or_session, body.failed)
        failed = "agent_failed" if body.failed else None
        session.end(AgentOutcome(body.reward, body.correct, body.parts, failed, (body.failed or "")[:WHY_CHARS]))
        counts = {name: int(trajectory.parts[name]) for name in AGENT_FACTS}
        recorded = trajectory_json(trajectory) if session.task is None else None
        return {**counts, "model_tokens": trajectory.model_tokens, "notes": session.notes, "trajectory": recorded}

    @router.delete("/sessions/{session_id}", status_code=204)
    async def give_up(session_id: str) -> None:
        """Abandon a session: its trajectory fails and is not trained."""
        agents.sessions.get(session_id).end(AgentOutcome(failed="agent_gave_up", why="its agent deleted the session"))

    app.include_router(router)
    app.mount("/sessions/{session_id}/v1", _Recorded(agents, vllm_app, template_shows))


class _Recorded:
    """vLLM's app below /sessions/{id}.

    The request is marked as one of the session, and changed so that the policy answers it freely.
    """

    def __init__(self, agents: AgentBroker, vllm_app: ASGIApp, template_shows: Shows) -> None:
        self.agents = agents
        self.vllm_app = vllm_app
        self.template_shows = template_shows

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = self.agents.sessions.get(scope["path_params"]["session_id"])
        path = scope["path"].removeprefix(f"/sessions/{session.id}")
        scope = {**scope, "path": path, "raw_path": path.encode(), "root_path": "", "path_params": {}}
        with session.request():
            if scope["method"] == "POST":
                scope, receive = await _as_policy_request(session, scope, receive, self.template_shows)
            await self.vllm_app(scope, receive, send)


async def _as_policy_request(
    session: AgentSession, scope: Scope, receive: Receive, template_shows: Shows
) -> tuple[Scope, Receive]:
    """Return the request with its body changed by `policy_request`."""
    body, requested = await _json_object(scope, receive)
    if requested is not None:
        request, notes = policy_request(requested, session.temperature)
        if request.get("tools") and not template_shows.tools:
            notes.append(TOOLS_NOTE)
        folded = None if template_shows.system else without_system(request)
        if folded is not None:
            request = folded
            notes.append(SYSTEM_NOTE)
        for note in session.note(notes):
            log.warning("session %s: %s", session.id, note)
        body = json.dumps(request).encode()
    return with_body(scope, receive, body)


async def _json_object(scope: Scope, receive: Receive) -> tuple[bytes, dict[str, Any] | None]:
    """Read a request's body and return it, with the JSON object that it is.

    The object is None if the body is anything else: it is passed on unchanged, and vLLM's app reports what is wrong.
    """
    body = await Request(scope, receive).body()
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return body, None
    return body, value if isinstance(value, dict) else None


def with_body(scope: Scope, receive: Receive, body: bytes) -> tuple[Scope, Receive]:
    """Return the request with another body."""
    headers = [(k, v) for k, v in scope["headers"] if k != b"content-length"]
    length = (b"content-length", str(len(body)).encode())
    return {**scope, "headers": [*headers, length]}, replayed(body, receive)


class ToolsRefused:
    """The OpenAI app of an engine without a parser of calls: it answers no request whose client waits for calls.

    vLLM itself refuses some of these, and answers others (/responses, a tool_choice of null) by plain text.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].endswith(CALLING_ROUTES):
            body, requested = await _json_object(scope, receive)
            receive = replayed(body, receive)
            if requested is not None and wants_calls(requested):
                refusal = JSONResponse({"error": "tool_call_parser", "detail": NO_PARSER}, 400)
                return await refusal(scope, receive, send)
        await self.app(scope, receive, send)


class SystemFolded:
    """The OpenAI app of a model without system messages: they are moved in front of the user's text."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            body, requested = await _json_object(scope, receive)
            folded = None if requested is None else without_system(requested)
            if folded is not None:
                body = json.dumps(folded).encode()
            scope, receive = with_body(scope, receive, body)
        await self.app(scope, receive, send)
