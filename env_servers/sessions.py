"""Sessions, and the replies that they have given: a step id is answered once, and asking again returns the same reply.

    Sessions.open(request)                   the same session_id with the same task again is the same session: a /reset
                                             may be retried
    Session.step(request, execute, keep)
        new step_id                          `execute` runs in a task that the session owns, so a broken connection
                                             does not lose the result
        step_id still running                waits for that result
        step_id answered                     returns the cached reply
        step_id with another action          Conflict
    Session.abandon(step_id)                 a caller hung up: a step that has not begun, and for which no other caller
                                             waits, is dropped as if it had never been sent

A session unused for `ttl_s` seconds is closed by `expire`; a running step uses it. When `max_sessions` are open a new
one is refused (CapacityFull); an open one is never evicted.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from openrlhf_tir.protocol import ResetRequest, StepReply, StepRequest

from .admission import CapacityFull
from .defects import Overrun, contain
from .env import Env

Execute = Callable[["Session", StepRequest], Coroutine[Any, Any, StepReply]]
"""Runs one step of a session and returns its reply."""
log = logging.getLogger(__name__)
CLOSE_S = 60.0
"""Seconds for which the end of a session waits for what it has cancelled, and then for the environment's `close`. Both
go on behind that: code that never returns must not keep other sessions from expiring, nor the server from ending."""


class NoSession(Exception):
    """Raised for a session id that was never opened here, was closed, or has expired."""


class Conflict(Exception):
    """Raised when the same id was used for something else before."""


@dataclass(eq=False, slots=True)
class _Answer:
    """The answer to one step_id, running or finished.

    Attributes:
        callers: Number of requests that wait for it.
        started: True once the step holds an execution slot. It may have changed something, so it runs to its end.
    """

    action: str
    task: asyncio.Task[StepReply]
    callers: int = 0
    started: bool = False


@dataclass(eq=False, slots=True)
class Session:
    """One episode of a client: its environment and its last replies.

    Attributes:
        opened_by: Task and seed of the /reset that opened it.
        reset: The task that computes the first observation.
        step_lock: Held by the reset or step that runs: those of one session run one after another.
        last_used: Time at which the session was last known to be in use, by the clock of `Sessions`.
        answers: Answers by step_id, oldest first.
        newest_dropped: Highest step_id whose cached reply was dropped; -1 if none was.
        close_error: What the environment raised in `close`.
    """

    id: str
    env: Env
    opened_by: tuple[dict, int]
    reset: asyncio.Task[str] | None = None
    step_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    last_used: float = 0.0
    answers: OrderedDict[int, _Answer] = field(default_factory=OrderedDict)
    newest_dropped: int = -1
    close_error: BaseException | None = None

    async def begin(self) -> str:
        """Reset the environment and return the first observation. Steps that come before its end wait for it."""
        async with self.step_lock:
            observation: str = await contain(self.env.reset(*self.opened_by))
        return observation

    async def step(self, request: StepRequest, execute: Execute, keep: int) -> StepReply:
        """Return the reply to a step, which runs at most once.

        Args:
            request: The step. A step_id that was answered before gets the same reply.
            execute: Runs the step.
            keep: Number of replies that are kept for retries.

        Raises:
            Conflict: The step_id was used for another action, or its reply is no longer kept.
            CapacityFull: As everything that `execute` raises. It is not remembered, so the step_id may be tried again.
        """
        answer = self.answers.get(request.step_id)
        if answer is None:
            if request.step_id <= self.newest_dropped:
                raise Conflict(
                    f"step_id {request.step_id} was answered long ago and its reply is no longer kept (the last {keep}"
                    " are). Count step_id up."
                )
            task = asyncio.create_task(execute(self, request), name=f"step {self.id}/{request.step_id}")
            answer = self.answers[request.step_id] = _Answer(request.action, task)
            task.add_done_callback(lambda finished: self._step_finished(request.step_id, finished, keep))
        elif answer.action != request.action:
            raise Conflict(
                f"step_id {request.step_id} of this session was used for another action."
                " Count step_id up for every new action."
            )
        answer.callers += 1
        try:
            return await asyncio.shield(answer.task)
        finally:
            answer.callers -= 1

    def mark_started(self, step_id: int) -> None:
        """Record that a step holds its execution slot and runs from now on."""
        self.answers[step_id].started = True

    def abandon(self, step_id: int) -> None:
        """Cancel a step that has not begun and for which no caller waits any more."""
        answer = self.answers.get(step_id)
        if answer is not None and not answer.callers and not answer.started:
            answer.task.cancel()

    def _step_finished(self, step_id: int, task: asyncio.Task[StepReply], keep: int) -> None:
        """Keep the reply of a finished step and drop the oldest ones; drop a step that failed, so it can be retried."""
        if task.cancelled() or task.exception() is not None:
            self.answers.pop(step_id, None)
            return
        while len(self.answers) > keep and next(iter(self.answers.values())).task.done():
            dropped_id, _ = self.answers.popitem(last=False)
            self.newest_dropped = max(self.newest_dropped, dropped_id)

    def running_tasks(self) -> list[asyncio.Task[Any]]:
        """Return the tasks of the reset and of steps that have not ended."""
        tasks: list[asyncio.Task[Any]] = [answer.task for answer in self.answers.values()]
        if self.reset is not None:
            tasks.append(self.reset)
        return [task for task in tasks if not task.done()]

    async def close(self) -> None:
        """Cancel what runs and close the environment. An exception of the environment is logged and kept."""
        running = self.running_tasks()
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=CLOSE_S)
        closing = asyncio.create_task(contain(self.env.close()), name=f"close {self.id}")
        try:
            async with asyncio.timeout(CLOSE_S):
                await asyncio.shield(closing)
        except (Exception, Overrun) as e:  # a fault of this environment must not keep other sessions from being closed
            self.close_error = e
            log.exception("the environment failed in close", extra={"session": self.id})


class Sessions:
    """The open sessions of one server."""

    def __init__(
        self,
        factory: Callable[[], Env],
        *,
        max_sessions: int,
        ttl_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create an empty collection.

        Args:
            factory: Returns the environment of a new session.
            max_sessions: Number of sessions that may be open at once.
            ttl_s: Seconds after which an unused session expires.
            clock: Returns the time in seconds; replaced in tests.
        """
        self._factory = factory
        self.max_sessions = max_sessions
        self.ttl_s = ttl_s
        self._clock = clock
        self._by_id: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, session_id: str) -> Session:
        """Return an open session and note that it is used.

        Raises:
            NoSession: There is none of this id.
        """
        session = self._by_id.get(session_id)
        if session is None:
            possible_reasons = f"never opened, closed, expired after {self.ttl_s:g} s, or opened on another server"
            raise NoSession(f"No session {session_id!r} here: {possible_reasons}. POST /reset first.")
        session.last_used = self._clock()
        return session

    async def open(
        self, request: ResetRequest, on_failed_reset: Callable[[asyncio.Task[str]], None] = lambda reset: None
    ) -> tuple[Session, str]:
        """Open a session, or return the open one if the same request comes again.

        Args:
            request: The session's id, task and seed.
            on_failed_reset: Called with a reset that failed, or that is about to be cancelled because its caller gave
                up.

        Returns:
            The session and its first observation.

        Raises:
            Conflict: The session is open for another task or seed.
            CapacityFull: `max_sessions` are open.
            Exception: What the environment's reset raises. The session is closed then.
        """
        session_id = request.session_id or uuid.uuid4().hex
        opened_by = (request.task, request.seed)
        session = self._by_id.get(session_id)
        if session is None:
            if len(self._by_id) >= self.max_sessions:
                raise CapacityFull(f"{len(self._by_id)} open sessions", retry_after_s=1)
            env = await contain(self._new_env())
            session = self._by_id[session_id] = Session(session_id, env, opened_by, last_used=self._clock())
            session.reset = asyncio.create_task(session.begin(), name=f"reset {session_id}")
        elif session.opened_by != opened_by:
            raise Conflict(f"session {session_id!r} is open for another task or seed. Use a new session_id.")
        assert session.reset is not None, "started when the session was opened"
        try:
            return session, await asyncio.shield(session.reset)
        except BaseException:
            on_failed_reset(session.reset)
            if self._by_id.get(session_id) is session:  # else it was closed, and its id may be another session's by now
                await self.close(session_id)
            raise

    async def _new_env(self) -> Env:
        """Return a new environment. A coroutine for `contain`: it never gives up the event loop."""
        return self._factory()

    async def close(self, session_id: str) -> Session | None:
        """Close a session and return it; None if it is not open."""
        session = self._by_id.pop(session_id, None)
        if session is not None:
            await session.close()
        return session

    async def close_owned(self, owner: str) -> int:
        """Close the sessions whose id begins with `owner` and a dot, which a killed client has left. Return their
        number."""
        owned = [session_id for session_id in self._by_id if session_id.startswith(f"{owner}.")]
        await asyncio.gather(*map(self.close, owned))
        return len(owned)

    async def expire(self) -> None:
        """Close the sessions that were unused for `ttl_s`."""
        now = self._clock()
        for session in self._by_id.values():
            if session.running_tasks():
                session.last_used = now
        expired = [session.id for session in self._by_id.values() if session.last_used < now - self.ttl_s]
        await asyncio.gather(*map(self.close, expired))

    async def close_all(self) -> None:
        """Close all sessions at the same time: a stopping server waits for the slowest of them, not for their sum."""
        await asyncio.gather(*map(self.close, list(self._by_id)))
