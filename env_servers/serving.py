"""Turn an `Env` class into a FastAPI app that speaks `openrlhf_tir.protocol`.

    request -> Guard (token, body size) -> Sessions (idempotent step_id) -> Admission (capacity) -> Env.step ->
    StepReply

The deadline of a step counts from its receipt, so waiting for an execution slot is part of it. A missed deadline is
outcome `timeout`, an exception of the environment `env_error`; both are remembered like any reply. A full queue is 429
with Retry-After (in a batch: outcome `capacity` with signals["retry_after_s"]) and is not remembered.

    404    no such session
    409    an id that was used for something else
    422    a malformed request or task
    503    the server is draining

When a client hangs up, its step is dropped if it has not begun. A step that runs continues to its end, and a retry with
the same id finds its reply.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from openrlhf_tir.http_guard.connections import ConnectionLimits
from openrlhf_tir.http_guard.guard import BodyLimits, Guard
from openrlhf_tir.http_guard.json_body import answer_malformed
from openrlhf_tir.http_guard.leaving import answer_leavers, unless_client_leaves
from openrlhf_tir.protocol import (
    CODE_DEFECT,
    NO_SESSION,
    NOT_NEEDED,
    EnvSchema,
    Health,
    Outcome,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
)
from openrlhf_tir.user_code.loop_watch import LoopWatch

from .admission import Admission, CapacityFull
from .defects import Defects, Overrun, contain, described, show
from .env import MALFORMED_TASK, Env, Step
from .metrics import ServerMetrics
from .replies import fit_reset, fit_step, unwritable
from .sessions import Conflict, NoSession, Session, Sessions

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """Description and limits of one server.

    Attributes:
        env: Name of the environment.
        action: What an action is, in a few words.
        isolation: What confines the code that the environment runs; "none" if the model's code runs unconfined. See
            `protocol.Health`.
        stateful: True if a step depends on the steps before it.
        tools: Schemas of the environment's tools, in OpenAI's form.
        languages: Languages that its /run_code runs, if it has one.
        code_timeout_s: Time limit of an action that is code, in seconds; None if the environment runs no code.
        prefers_batches: True if clients should send steps together to /step_batch.
        workers: Executions at once; about the number of cores.
        max_queue: Executions that may wait for a worker; more get 429.
        max_sessions: Sessions that may be open; more get 429.
        session_ttl_s: Seconds after which an unused session is closed.
        kept_replies: Cached replies per session: how far back a step_id can be retried.
        reset_timeout_s: Seconds within which a reset must finish.
        bodies: Limits on request bodies.
        connections: Limits on connections.
        max_batch: Steps that one /step_batch may have.
        server_url: The server's own base URL, which /reset returns; None: the client keeps the URL that it used.
        token: Bearer token; None: requests need none. The launcher takes it from an environment variable.
    """

    env: str
    action: str
    isolation: str = NOT_NEEDED
    stateful: bool = False
    tools: Sequence[dict[str, Any]] = ()
    languages: Sequence[str] = ()
    code_timeout_s: float | None = None
    prefers_batches: bool = False
    workers: int = 2
    max_queue: int = 256
    max_sessions: int = 4096
    session_ttl_s: float = 3600.0
    kept_replies: int = 32
    reset_timeout_s: float = 60.0
    bodies: BodyLimits = field(default_factory=BodyLimits)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    max_batch: int = 1024
    server_url: str | None = None
    token: str | None = None


class EnvService:
    """State of one server: sessions, admission and metrics.

    Attributes:
        draining: Set by the launcher when it is asked to stop: no session is opened any more.
    """

    def __init__(
        self, factory: Callable[[], Env], config: ServingConfig, gauges: Mapping[str, Callable[[], float]]
    ) -> None:
        self.config = config
        self.draining = False
        self.defects = Defects(factory)
        self.watch = LoopWatch(self.defects.files)
        self.admission = Admission(config.workers, config.max_queue)
        self.sessions = Sessions(factory, max_sessions=config.max_sessions, ttl_s=config.session_ttl_s)
        common_gauges: dict[str, Callable[[], float]] = {
            "sessions": self.sessions.__len__,
            "running": lambda: self.admission.running,
            "waiting": lambda: self.admission.waiting,
        }
        self.metrics = ServerMetrics(config.env, {**common_gauges, **gauges})

    async def reset(self, request: ResetRequest) -> ResetReply:
        """Open a session and return its first observation.

        Raises:
            HTTPException: The server is stopping, the task cannot be played, or the environment failed.
            _Defect: The code of the environment is wrong.
            CapacityFull: There is no room for another session.
            Conflict: The session is open, with another task or seed.
            NoSession: The session was closed while its reset ran.
        """
        if self.draining:
            raise HTTPException(
                503, "The server is draining and opens no sessions. Use another one.", {"Retry-After": "5"}
            )
        waited_at: str | None = None

        def note_where_it_waits(reset: asyncio.Task[str]) -> None:
            nonlocal waited_at
            waited_at = self.defects.waits_at(reset)

        try:
            async with asyncio.timeout(self.config.reset_timeout_s) as deadline:
                await self.watch.turn()
                with self.watch.allows(self.config.reset_timeout_s):
                    session, observation = await self.sessions.open(request, note_where_it_waits)
        except (CapacityFull, Conflict):
            raise
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            raise NoSession(f"session {request.session_id!r} was closed while its reset ran") from None
        except (Exception, Overrun) as e:  # as in _execute: the failure of the environment
            late = isinstance(e, TimeoutError) and deadline.expired()
            defect = None if late else self.defects.signals(e, "reset")
            if isinstance(e, MALFORMED_TASK) and defect is None:
                raise HTTPException(422, f"task: {described(e)}") from e
            log.exception(
                "the environment failed in reset", extra={"env": self.config.env, "session": request.session_id}
            )
            if defect:
                raise _Defect(defect) from e
            if late:
                message = f"env_error: reset did not finish within {self.config.reset_timeout_s:g} s and was cancelled."
                if waited_at:
                    raise HTTPException(504, f"{message} It waited at {waited_at}.") from e
                raise HTTPException(500, message) from e
            raise HTTPException(500, f"env_error: reset failed with {self.defects.outage(e)}") from e
        if isinstance(observation, str):
            reply = ResetReply(session_id=session.id, observation=observation, server=self.config.server_url)
            return fit_reset(reply)
        fault = TypeError(_wrong_result(session.env, "reset", observation, "text"))
        await self.sessions.close(session.id)
        if defect := self.defects.signals(fault, "reset"):
            raise _Defect(defect)
        raise HTTPException(500, f"env_error: {fault}")

    async def step(self, request: StepRequest) -> StepReply:
        """Run a step and return its reply.

        Raises:
            NoSession: The session is not open, or was closed while the step ran.
            Conflict: The step_id was used for another action.
            CapacityFull: The queue is full. Every other failure is an outcome of the reply.
        """
        session = self.sessions.get(request.session_id)
        try:
            async with asyncio.timeout(request.deadline_s):
                return await session.step(request, self._execute, self.config.kept_replies)
        except TimeoutError:
            answer = session.answers.get(request.step_id)
            return self._late(request, self.defects.waits_at(answer.task if answer else None))
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                session.abandon(request.step_id)
                raise
            raise NoSession(f"session {request.session_id!r} was closed while step {request.step_id} ran") from None

    async def close(self, session_id: str) -> dict[str, Any]:
        """Close a session and return the reply, which tells a defect of the environment's `close` in `signals`."""
        session = await self.sessions.close(session_id)
        reply: dict[str, Any] = {"closed": session is not None}
        if session is not None and session.close_error is not None:
            defect = self.defects.signals(session.close_error, "close")
            reply.update({"signals": defect} if defect else {})
        return reply

    async def step_or_outcome(self, request: StepRequest) -> StepReply:
        """Run a step of a batch. A refusal becomes the outcome of its item, so that it does not refuse the others."""
        try:
            return await self.step(request)
        except CapacityFull as e:
            return _reply(request, outcome="capacity", signals={"retry_after_s": e.retry_after_s})
        except NoSession as e:
            return _reply(request, outcome="env_error", signals={NO_SESSION: True, "error": str(e)})
        except Conflict as e:
            return _reply(request, outcome="env_error", signals={"error": str(e)})

    async def _execute(self, session: Session, request: StepRequest) -> StepReply:
        """Run a step of the environment within its deadline.

        Raises:
            CapacityFull: The queue is full. Every other failure, of the environment too, is an outcome of the reply.
        """
        clock = asyncio.get_running_loop().time
        deadline_at = clock() + request.deadline_s
        start = clock()
        try:
            async with asyncio.timeout_at(deadline_at) as deadline:
                async with session.step_lock, self.admission.slot() as session.env.execution_slot:
                    session.mark_started(request.step_id)
                    await self.watch.turn()
                    with self.watch.allows(request.deadline_s):
                        step = await contain(session.env.step(request.action, deadline_at - clock()))
            if not isinstance(step, Step):
                raise TypeError(_wrong_result(session.env, "step", step, "an env_servers.env.Step"))
            reply = StepReply(
                session_id=request.session_id,
                step_id=request.step_id,
                observation=step.observation,
                reward=step.reward,
                done=step.done,
                truncated=step.truncated,
                outcome=step.outcome,
                signals=step.signals,
            )
            # Inside the block: a reply that cannot be sent is the environment's fault too.
            try:
                reply = fit_step(reply)
            except ValueError as e:
                fact = f"{unwritable(reply.signals)}, which JSON cannot hold"
                raise TypeError(f"{_place(session.env, 'step')}.step gave {fact}: {e}") from None
        except CapacityFull as e:
            self._record(session, request, "capacity", clock() - start, error=e.reason)
            raise
        except (Exception, Overrun) as e:
            # Every exception of an environment is caught here and reaches the trainer as env_error.
            if isinstance(e, TimeoutError) and deadline.expired():
                reply = self._late(request, self.defects.waits_at(None, e.__cause__))
            else:
                log.exception("the environment failed", extra=self._log_fields(session, request))
                signals = self.defects.signals(e, "step") or {"error": self.defects.outage(e)}
                reply = _reply(request, outcome="env_error", signals=signals)
        self._record(session, request, reply.outcome, clock() - start)
        return reply

    def _late(self, request: StepRequest, at: str | None) -> StepReply:
        """Return the reply to a step that missed its deadline; `at` is where the user's class waited."""
        return _reply(request, outcome="timeout", signals={"waits_at": at} if at else {})

    def _record(self, session: Session, request: StepRequest, outcome: Outcome, seconds: float, **fields: str) -> None:
        """Count a step in the metrics and log it, with `fields` added to the log record."""
        self.metrics.count(outcome, seconds)
        level = logging.WARNING if outcome in ("env_error", "timeout") else logging.INFO
        if log.isEnabledFor(level):
            log.log(
                level,
                "step",
                extra={
                    **self._log_fields(session, request),
                    "outcome": outcome,
                    "seconds": round(seconds, 4),
                    **fields,
                },
            )

    def _log_fields(self, session: Session, request: StepRequest) -> dict[str, object]:
        return {"env": self.config.env, "session": session.id, "step": request.step_id}

    async def expire_forever(self) -> None:
        """Close expired sessions at intervals, until cancelled."""
        while True:
            await asyncio.sleep(max(0.05, min(60.0, self.config.session_ttl_s / 4)))
            await self.sessions.expire()


def _wrong_result(env: Env, method: str, value: object, expected: str) -> str:
    """Return the message for a method with a wrong result: where it is defined, what it returned, what is expected."""
    return f"{_place(env, method)}.{method} returned {show(value)}, not {expected}"


def _place(env: Env, method: str) -> str:
    """Return "file:line: Class" of a method's definition, as messages about it begin."""
    code = getattr(getattr(type(env), method), "__code__", None)
    where = f"{code.co_filename}:{code.co_firstlineno}" if code else type(env).__module__
    return f"{where}: {type(env).__name__}"


def _reply(request: StepRequest, **fields) -> StepReply:
    return StepReply(session_id=request.session_id, step_id=request.step_id, **fields)


def create_env_app(
    env_factory: Callable[[], Env],
    config: ServingConfig,
    *,
    on_stop: Callable[[], Awaitable[None]] | None = None,
    gauges: Mapping[str, Callable[[], float]] = MappingProxyType({}),
) -> FastAPI:
    """Return the app of an environment. `app.state.service` is its EnvService.

    Args:
        env_factory: Returns the environment of a new session.
        config: Description and limits of the server.
        on_stop: Releases what the sessions share, after all of them are closed.
        gauges: Functions that /metrics reads, by metric name.
    """
    service = EnvService(env_factory, config, gauges)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        sweeper = asyncio.create_task(service.expire_forever(), name="expire sessions")
        service.watch.start()
        try:
            yield
        finally:
            sweeper.cancel()
            service.watch.stop()
            await service.sessions.close_all()
            if on_stop is not None:
                await on_stop()

    app = FastAPI(title=f"environment {config.env}", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    app.state.connections = config.connections
    app.add_middleware(Guard, token=config.token, limits=config.bodies)
    answer_malformed(app)
    answer_leavers(app)
    _answer_errors(app)

    @app.post("/reset")
    async def reset(body: ResetRequest) -> ResetReply:
        return await service.reset(body)

    @app.post("/step")
    async def step(body: StepRequest, request: Request) -> StepReply:
        return await unless_client_leaves(request.receive, service.step(body))

    @app.post("/step_batch")
    async def step_batch(body: list[StepRequest]) -> StreamingResponse:
        if len(body) > config.max_batch:
            raise HTTPException(
                413, f"A batch of {len(body)} steps exceeds the limit of {config.max_batch}. Send several batches."
            )

        async def lines() -> AsyncIterator[bytes]:
            tasks = [
                asyncio.create_task(service.step_or_outcome(item), name=f"batch item {item.session_id}/{item.step_id}")
                for item in body
            ]
            try:
                for finished in asyncio.as_completed(tasks):
                    yield (await finished).model_dump_json().encode() + b"\n"
            finally:
                for task in tasks:  # if the client hung up: drop steps that have not begun, as for a single step
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    @app.delete("/session/{session_id:path}")
    async def close(session_id: str) -> dict[str, Any]:
        return await service.close(session_id)

    @app.delete("/sessions/{owner:path}")
    async def close_owned(owner: str) -> dict[str, int]:
        return {"closed": await service.sessions.close_owned(owner)}

    @app.get("/health")
    async def health() -> Health:
        return Health(
            status="draining" if service.draining else "ok",
            env=config.env,
            isolation=config.isolation,
            sessions=len(service.sessions),
            capacity=config.workers,
            running=service.admission.running,
        )

    @app.get("/schema")
    async def schema() -> EnvSchema:
        return EnvSchema(
            env=config.env,
            action=config.action,
            capacity=config.workers,
            prefers_batches=config.prefers_batches,
            stateful=config.stateful,
            code_timeout_s=config.code_timeout_s,
            tools=list(config.tools),
            languages=list(config.languages),
        )

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(*service.metrics.render())

    return app


class _Defect(Exception):
    """Raised in `reset` for a defect of the user's class. It carries the signals that a step's reply would have."""

    def __init__(self, signals: dict[str, Any]) -> None:
        super().__init__(signals["error"])
        self.signals = signals


def _answer_errors(app: FastAPI) -> None:
    """Add the handlers that turn exceptions into HTTP replies."""

    @app.exception_handler(_Defect)
    async def defect(request: Request, e: _Defect) -> JSONResponse:
        detail = f"env_error: {e.signals[CODE_DEFECT]}: {e}"
        return JSONResponse({"detail": detail, "outcome": "env_error", "signals": e.signals}, 500)

    @app.exception_handler(NoSession)
    async def no_session(request: Request, e: NoSession) -> JSONResponse:
        return JSONResponse({"detail": str(e)}, 404)

    @app.exception_handler(Conflict)
    async def conflict(request: Request, e: Conflict) -> JSONResponse:
        return JSONResponse({"detail": str(e)}, 409)

    @app.exception_handler(CapacityFull)
    async def full(request: Request, e: CapacityFull) -> JSONResponse:
        detail = f"The server is full ({e.reason}). Try again in {e.retry_after_s} s."
        return JSONResponse({"detail": detail, "outcome": "capacity"}, 429, {"Retry-After": str(e.retry_after_s)})
