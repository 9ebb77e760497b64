"""Sessions: who is talking, and what was already answered. An id is answered once; asking again returns the same reply.

    open(request)  -> Session      the same session_id with the same task again: the same session (a retried /reset)
    Session.step(request, execute) -> StepReply
        new id                     `execute` runs in a task that the session owns, so a broken connection does not lose
                                   the result
        id still running           waits for that result
        id answered                the cached reply
        id with another action     Conflict
    Session.leave(id)              a caller hung up: what no other caller waits for and has not begun is dropped, as if
                                   never asked

A session unused for `ttl_s` is closed by `expire`. At `cap` sessions a new one is refused (CapacityFull), never an old
one evicted."""

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
from .defects import without_exit
from .env import Env

Execute = Callable[["Session", StepRequest], Coroutine[Any, Any, StepReply]]
log = logging.getLogger(__name__)


class NoSession(Exception):
    """The id was never opened here, was closed, or expired."""


class Conflict(Exception):
    """The same id was used for something else before."""


@dataclass(eq=False, slots=True)
class _Answer:
    action: str
    task: asyncio.Task[StepReply]
    callers: int = 0
    begun: bool = False
    """It holds a place: it may have changed something, so it runs once, to its end."""


@dataclass(eq=False, slots=True)
class Session:
    id: str
    env: Env
    opened_by: tuple[dict, int]
    reset: asyncio.Task[str] | None = None
    serial: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Steps of one session run one after another."""
    last_used: float = 0.0
    answers: OrderedDict[int, _Answer] = field(default_factory=OrderedDict)
    forgotten: int = -1
    """Highest step_id whose cached reply was dropped."""

    async def step(self, request: StepRequest, execute: Execute, keep: int) -> StepReply:
        """Raises Conflict, and what `execute` raises (CapacityFull is not remembered: the id may be tried again)."""
        answer = self.answers.get(request.step_id)
        if answer is None:
            if request.step_id <= self.forgotten:
                raise Conflict(
                    f"step_id {request.step_id} was answered long ago and its reply is no longer kept (the last {keep}"
                    " are). Count step_id up."
                )
            task = asyncio.create_task(execute(self, request), name=f"step {self.id}/{request.step_id}")
            answer = self.answers[request.step_id] = _Answer(request.action, task)
            task.add_done_callback(lambda t: self._settle(request.step_id, t, keep))
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

    def begin(self, step_id: int) -> None:
        """The step has its place and runs from now on."""
        self.answers[step_id].begun = True

    def leave(self, step_id: int) -> None:
        answer = self.answers.get(step_id)
        if answer is not None and not answer.callers and not answer.begun:
            answer.task.cancel()

    def _settle(self, step_id: int, task: asyncio.Task[StepReply], keep: int) -> None:
        if task.cancelled() or task.exception() is not None:
            self.answers.pop(step_id, None)
            return
        while len(self.answers) > keep and next(iter(self.answers.values())).task.done():
            self.forgotten = max(self.forgotten, self.answers.popitem(last=False)[0])

    async def close(self) -> None:
        running: list[asyncio.Task[Any]] = [a.task for a in self.answers.values() if not a.task.done()]
        if self.reset is not None and not self.reset.done():
            running.append(self.reset)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        try:
            await self.env.close()
        except Exception:  # the environment's own fault, and of this session alone: the others are closed all the same
            log.exception("the environment failed in close", extra={"session": self.id})


class Sessions:
    def __init__(
        self, factory: Callable[[], Env], *, cap: int, ttl_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._factory = factory
        self.cap = cap
        self.ttl_s = ttl_s
        self._clock = clock
        self._by_id: OrderedDict[str, Session] = OrderedDict()  # least recently used first
        self.on_given_up: Callable[[ResetRequest, asyncio.Task[str]], None] = lambda request, reset: None
        """Told of a reset that failed, or is given up while it runs."""

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, session_id: str) -> Session:
        session = self._by_id.get(session_id)
        if session is None:
            why = f"never opened, closed, expired after {self.ttl_s:g} s, or opened on another server"
            raise NoSession(f"No session {session_id!r} here: {why}. POST /reset first.")
        session.last_used = self._clock()
        self._by_id.move_to_end(session_id)
        return session

    async def open(self, request: ResetRequest) -> tuple[Session, str]:
        """(session, first observation). Raises Conflict, CapacityFull, and what the environment's reset raises."""
        session_id = request.session_id or uuid.uuid4().hex
        opened_by = (request.task, request.seed)
        session = self._by_id.get(session_id)
        if session is None:
            if len(self._by_id) >= self.cap:
                raise CapacityFull(f"{len(self._by_id)} open sessions", retry_after_s=1)
            session = self._by_id[session_id] = Session(session_id, self._factory(), opened_by, last_used=self._clock())
            session.reset = asyncio.create_task(
                without_exit(session.env.reset(request.task, request.seed)), name=f"reset {session_id}"
            )
        elif session.opened_by != opened_by:
            raise Conflict(f"session {session_id!r} is open for another task or seed. Use a new session_id.")
        assert session.reset is not None, "begun when it was opened"
        try:
            return session, await asyncio.shield(session.reset)
        except BaseException:
            self.on_given_up(request, session.reset)
            await self.close(session_id)
            raise

    async def close(self, session_id: str) -> bool:
        session = self._by_id.pop(session_id, None)
        if session is None:
            return False
        await session.close()
        return True

    async def close_owned(self, owner: str) -> int:
        """Close the sessions whose id begins with `owner` and a dot, side by side: what a killed client left. How many
        there were."""
        owned = [session_id for session_id in self._by_id if session_id.startswith(f"{owner}.")]
        await asyncio.gather(*map(self.close, owned))
        return len(owned)

    async def expire(self) -> None:
        """Close what was unused for `ttl_s` and has nothing running."""
        deadline = self._clock() - self.ttl_s
        old = [
            s.id
            for s in self._by_id.values()
            if s.last_used < deadline and all(a.task.done() for a in s.answers.values())
        ]
        await asyncio.gather(*map(self.close, old))

    async def close_all(self) -> None:
        """Side by side: a server that stops waits for the slowest of them, not for their sum."""
        await asyncio.gather(*map(self.close, list(self._by_id)))
