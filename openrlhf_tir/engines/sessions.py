"""Sessions: which agent runs are open, and which of them a request belongs to.

    open -> requests (recorded) -> reward or give-up or silence -> outcome

A session ends once: by its reward, because its agent gave it up, because nothing was heard of it for `idle_s`, or
because whoever opened it left. A request that is being answered counts as a sign of life.
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
"""The session that the request being answered belongs to."""


@dataclass(frozen=True, slots=True)
class Reward:
    """What an agent says at its end. `reward` None: the run's own reward judges the trajectory.

    `correct` None: reward > 0. `failed` names a fault of the agent's machinery: no reward, not trained; `why` is for a
    person."""

    reward: float | None = None
    correct: bool | None = None
    parts: dict[str, float] = field(default_factory=dict)
    failed: str | None = None
    why: str = ""


class SessionGone(Exception):
    """No session of this id is open."""


class AgentSession:
    """One agent's run at one task."""

    def __init__(self, task: Task | None, *, temperature: float, override_sampling: bool, idle_s: float) -> None:
        self.id = uuid.uuid4().hex
        self.task, self.temperature, self.override_sampling = task, temperature, override_sampling
        self.trace = RequestTrace()
        self.outcome: asyncio.Future[Reward] = asyncio.get_running_loop().create_future()
        self.taken = False
        """Whether an agent has taken this session's task."""
        self.running = 0
        """How many of its requests are being answered."""
        self.notes: list[str] = []
        """What of its requests was not done as asked, each once."""
        self.overflowed = False
        """Whether a request was refused since its prompt and answer exceed the model's context."""
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._idle_s = idle_s
        self._silence: asyncio.TimerHandle | None = None

    def record(self, prompt_ids: Sequence[int], completion: Completion) -> None:
        """One answered request; one without a token says nothing."""
        if len(completion.token_ids) and not self.outcome.done():
            self.trace.add(prompt_ids, completion)

    def end(self, reward: Reward) -> None:
        if not self.outcome.done():
            self.outcome.set_result(reward)

    @contextmanager
    def request(self) -> Iterator[None]:
        """While one of its requests is answered: what the engine samples in this context is recorded here."""
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
        """Whether nothing is being answered any more, after at most `timeout_s`.

        A client has read its stream some time before the server is done with it, and says its reward at once."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.running:
                    await self._quiet.wait()
        except TimeoutError:
            return False
        return True

    def note(self, notes: list[str]) -> list[str]:
        """Keep what was not yet said; returns that."""
        new = [n for n in notes if n not in self.notes]
        self.notes += new
        return new

    def alive(self) -> None:
        """Something was heard of the agent: it has another `idle_s`."""
        if self._silence:
            self._silence.cancel()
        self._silence = asyncio.get_running_loop().call_later(self._idle_s, self._silent)

    def left(self) -> None:
        """Its task was taken by an agent that never heard of it: silence means nothing until another takes it."""
        self.taken, self.override_sampling = False, False
        if self._silence:
            self._silence.cancel()

    def close(self) -> None:
        if self._silence:
            self._silence.cancel()
        self.outcome.cancel()

    def _silent(self) -> None:
        if not self.running:
            self.end(Reward(failed="agent_lost", why=f"nothing was heard of it for {self._idle_s:g} s"))


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
        """Close it, however it ends."""
        session = AgentSession(task, temperature=temperature, override_sampling=override_sampling, idle_s=self.idle_s)
        self._open[session.id] = session
        return session

    def get(self, session_id: str) -> AgentSession:
        """Raises SessionGone."""
        session = self._open.get(session_id)
        if session is None or session.outcome.done():
            raise SessionGone(
                f"No session {session_id!r} is open: never opened here, or ended by its reward,"
                " by silence or with its group."
            )
        return session

    def close(self, session: AgentSession) -> None:
        self._open.pop(session.id, None)
        session.close()
