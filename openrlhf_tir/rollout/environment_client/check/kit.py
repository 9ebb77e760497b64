"""One server under test, spoken to in plain HTTP. Checks read facts from it and raise Broken with a wrong one."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from ....config.servers import Actions
from ....protocol import EnvSchema, Health, ResetReply, StepReply

Verdict = Literal["pass", "fail", "skip"]
Wire = TypeVar("Wire", bound=BaseModel)


class Broken(Exception):
    """A promise of the protocol is not kept; the text is the fact."""


class Skip(Exception):
    """The check does not apply; the text says why."""


class Finding(NamedTuple):
    check: str
    verdict: Verdict
    fact: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Options:
    steps: int = 1000
    """Steps of the leak check."""
    concurrency: int = 16
    flood: int = 400
    """Slow steps at once; a server with a bounded queue refuses some."""
    max_growth_mib: float = 32.0
    """What a server's memory may grow by from a tenth of the leak check to its end."""
    oversize_bytes: int = 64 << 20
    """A body that no server should take."""
    timeout_s: float = 30.0


class Answer(NamedTuple):
    status: int
    text: str
    headers: dict[str, str]

    def json(self) -> Any:
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            raise Broken(f"body is no JSON: {self.text[:80]!r}") from None


class Kit:
    """The server under test, and what is known of it.

    Attributes:
        url: The URL that was given.
        base: URL of the process that holds the sessions: the one that /reset named, or else `url`.
    """

    def __init__(self, url: str, actions: Actions, options: Options, *, token: str | None) -> None:
        self.url = url.rstrip("/")
        self.base = self.url
        self.actions = actions
        self.options = options
        self.token = token
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self.options.timeout_s), connector=aiohttp.TCPConnector(limit=0)
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.close()

    async def send(self, method: str, path: str, body: Any = None, *, authorized: bool = True) -> Answer:
        """Send a request and return the answer. Raises Broken if there is none."""
        headers = {"Content-Type": "application/json", **(self._headers if authorized else {})}
        data = None if body is None else json.dumps(body).encode()
        try:
            async with self._http.request(method, self.base + path, data=data, headers=headers) as response:
                return Answer(response.status, await response.text(errors="replace"), dict(response.headers))
        except (aiohttp.ClientError, TimeoutError) as e:
            raise Broken(f"{method} {path} got no answer: {type(e).__name__} {e}") from e

    async def reset(self, session_id: str, task: dict[str, Any] | None = None, seed: int = 0) -> Answer:
        return await self.send(
            "POST",
            "/reset",
            {"task": self.actions.task if task is None else task, "seed": seed, "session_id": session_id},
        )

    async def open(self, task: dict[str, Any] | None = None, seed: int = 0) -> str:
        """Open a session and return its id. Raises Broken."""
        session_id = f"check-{uuid.uuid4().hex}"
        reply = read(ResetReply, await self.reset(session_id, task, seed))
        if reply.session_id != session_id:
            raise Broken(f"/reset opened session {reply.session_id!r} when asked for {session_id!r}")
        return session_id

    async def close(self, session_id: str) -> None:
        answer = await self.send("DELETE", f"/session/{session_id}")
        if answer.status != 200 or answer.json() != {"closed": True}:
            raise Broken(f"DELETE of an open session answered {answer.status} {answer.text[:80]!r}")

    async def step(self, session_id: str, step_id: int, action: str | None = None, deadline_s: float = 20.0) -> Answer:
        """Send a step. Without an `action` it is the valid one."""
        return await self.send("POST", "/step", self.step_body(session_id, step_id, action, deadline_s))

    def step_body(
        self, session_id: str, step_id: int, action: str | None = None, deadline_s: float = 20.0
    ) -> dict[str, Any]:
        return {
            "session_id": session_id,
            "step_id": step_id,
            "action": self.actions.valid if action is None else action,
            "deadline_s": deadline_s,
        }

    async def ok(self, session_id: str, step_id: int, action: str | None = None) -> StepReply:
        """Return the reply to a step that must work. Raises Broken."""
        reply = read(StepReply, await self.step(session_id, step_id, action))
        if (reply.session_id, reply.step_id) != (session_id, step_id):
            raise Broken(f"asked for {session_id}/{step_id}, the reply is for {reply.session_id}/{reply.step_id}")
        if reply.outcome != "ok":
            raise Broken(
                f"a valid action has outcome {reply.outcome}: {reply.signals.get('error', reply.observation[:80])}"
            )
        return reply

    async def health(self) -> Health:
        return read(Health, await self.send("GET", "/health"))

    async def schema(self) -> EnvSchema:
        return read(EnvSchema, await self.send("GET", "/schema"))

    async def metric(self, name: str) -> float | None:
        """Return the sum of a metric over its labels; None if /metrics does not have it."""
        answer = await self.send("GET", "/metrics")
        if answer.status != 200:
            return None
        lines = [line for line in answer.text.splitlines() if line.split("{")[0].split(" ")[0] == name]
        try:
            return sum(float(line.rpartition(" ")[2]) for line in lines) if lines else None
        except ValueError:
            raise Broken(f"/metrics gives {name} no number: {lines[0][:80]!r}") from None


def read(kind: type[Wire], answer: Answer) -> Wire:
    """Return the reply of a 200. Raises Broken with the status or the field that is wrong."""
    if answer.status != 200:
        raise Broken(f"HTTP {answer.status} instead of a {kind.__name__}: {answer.text[:120]!r}")
    try:
        return kind.model_validate_json(answer.text)
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False)[0]
        raise Broken(
            f"no valid {kind.__name__}: {'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}"
        ) from None


def expect_status(answer: Answer, status: int, what: str) -> None:
    if answer.status != status:
        raise Broken(f"{what} answered {answer.status}, not {status}")
