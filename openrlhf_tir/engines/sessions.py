"""Keep track of the agents' runs that are open, and assign each request to its session.

    open -> requests (recorded) -> reward, abandonment or silence -> outcome

A session ends once: with its reward, because its agent abandoned it, because the agent sent nothing for `idle_s`
seconds, or because the code that opened it closed it. A request that is being answered counts as a sign of life.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from ..types import Completion, Task
from .session_trace import RequestTrace

CURRENT: ContextVar[AgentSession | None] = ContextVar("session", default=None)
"""The session of the request that is answered in this context; None outside of sessions."""


@dataclass(frozen=True, slots=True)
class AgentOutcome:
    """What an agent reports at its end.

    Attributes:
        reward: The reward; None: the run's own reward function computes it.
        correct: Whether the task was solved; None: reward > 0.
        parts: Parts of the reward, which become metrics.
        failed: Name of a fault of the agent's infrastructure. The trajectory then has no reward and is not trained.
        why: Explanation of the fault for a person.
    """

    reward: float | None = None
    correct: bool | None = None
    parts: dict[str, float] = field(default_factory=dict)
    failed: str | None = None
    why: str = ""


class SessionGone(Exception):
    """No session with this id is open."""


class AgentSession:
    """One agent's run on one task."""

    def __init__(self, task: Task | None, *, temperature: float, override_sampling: bool, idle_s: float) -> None:
        self.id = uuid.uuid4().hex
        self.task = task
        self.temperature = temperature
        self.override_sampling = override_sampling
        self.trace = RequestTrace()
        self.outcome: asyncio.Future[AgentOutcome] = asyncio.get_running_loop().create_future()
        self.taken = False
        """True if an agent has taken this session's task."""
        self.running = 0
        """Number of its requests that are being answered."""
        self.notes: list[str] = []
        """Options of its requests that were not followed; each is listed once."""
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._idle_s = idle_s
        self._silence: asyncio.TimerHandle | None = None

    def record(self, prompt_ids: Sequence[int], completion: Completion) -> None:
        """Record an answered request. One without a token, or after the session's end, is ignored."""
        if len(completion.token_ids) and not self.outcome.done():
            self.trace.add(prompt_ids, completion)

    def end(self, outcome: AgentOutcome) -> None:
        """End the session. Only the first call counts."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Mark a request as being answered inside the block. What the engine samples in this context is recorded."""
        token = CURRENT.set(self)
        self.running += 1
        self._quiet.clear()
        try:
            yield
        finally:
            self.running -= 1
            if not self.running:
                self._quiet.set()
            CURRENT.reset(token)
            self.alive()

    async def quiet(self, timeout_s: float) -> bool:
        """Wait until no request is being answered, at most `timeout_s` seconds; return True if that is so.

        It is needed because a client has read its stream a moment before the server has finished the request, and may
        send its reward at once.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self.running:
                    await self._quiet.wait()
        except TimeoutError:
            return False
        return True

    def note(self, notes: list[str]) -> list[str]:
        """Add the notes that are new, and return them."""
        new = [n for n in notes if n not in self.notes]
        self.notes += new
        return new

    def alive(self) -> None:
        """Restart the timer of `idle_s` seconds after a sign of life."""
        if self._silence:
            self._silence.cancel()
        if not self.outcome.done():
            self._silence = asyncio.get_running_loop().call_later(self._idle_s, self._silent)

    def left(self) -> None:
        """Put the task back: the agent that took it never received it. The timer stops until another agent takes it."""
        self.taken = False
        self.override_sampling = False
        if self._silence:
            self._silence.cancel()

    def close(self) -> None:
        """Stop the timer and cancel the outcome if there is none."""
        if self._silence:
            self._silence.cancel()
        self.outcome.cancel()

    def _silent(self) -> None:
        if not self.running:
            self.end(AgentOutcome(failed="agent_lost", why=f"nothing was heard of it for {self._idle_s:g} s"))


class Sessions:
    """The sessions that are open, by id."""

    def __init__(self, *, idle_s: float) -> None:
        self.idle_s = idle_s
        self._open: dict[str, AgentSession] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(
        self, task: Task | None = None, *, temperature: float = 1.0, override_sampling: bool = False
    ) -> AgentSession:
        """Open a session. The caller must close it, however it ends."""
        session = AgentSession(task, temperature=temperature, override_sampling=override_sampling, idle_s=self.idle_s)
        self._open[session.id] = session
        return session

    def get(self, session_id: str) -> AgentSession:
        """Return an open session.

        Raises:
            SessionGone: No session with this id is open.
        """
        session = self._open.get(session_id)
        if session is None or session.outcome.done():
            raise SessionGone(
                f"No session {session_id!r} is open: never opened here, or ended by its reward,"
                " by silence or with its group."
            )
        return session

    def close(self, session: AgentSession) -> None:
        """Close a session. Idempotent."""
        self._open.pop(session.id, None)
        session.close()
