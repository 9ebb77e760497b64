"""EnvClient: the trainer's side of the environment protocol. Only trainable replies come back; every fault is an exception.

    async with client.session("python_tir", task, seed=1) as env:
        text = await env.reset()
        reply = await env.step(code, step_id=0)         outcome ok or model_error

One client per rollout actor, for its whole life: connections are pooled and `max_concurrency` holds over all sessions.

    broken connection, 5xx      tried again with the same ids (the server answers an id once), `max_retries` times, backing off
    429, outcome capacity       tried again after Retry-After; not a failure, bounded by the deadline alone
    outcome timeout, deadline   EnvTimeout
    everything else             EnvError with URL and fact: env_error, lost session, a body that is not the protocol's
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from ..errors import EnvError, EnvTimeout, unknown
from ..protocol import TRAINABLE_OUTCOMES, EnvSchema, ResetReply, ResetRequest, StepReply, StepRequest

log = logging.getLogger(__name__)
Wire = TypeVar("Wire", bound=BaseModel)

MAX_REPLY_BYTES = 16 << 20
CONNECT_TIMEOUT_S = 5.0


class _Again(Exception):
    """The request may be sent again. `after_s` is set when the server said when: that is no failure."""

    def __init__(self, fact: str, after_s: float | None = None) -> None:
        super().__init__(fact)
        self.fact, self.after_s = fact, after_s


class EnvClient:
    def __init__(
        self,
        urls: Mapping[str, str | Sequence[str]],
        *,
        token: str | None = None,
        max_concurrency: int = 64,
        step_timeout_s: float = 20.0,
        reset_timeout_s: float = 60.0,
        max_retries: int = 3,
        backoff_s: float = 0.1,
        grace_s: float = 2.0,
    ) -> None:
        """`urls`: environment -> base URL, or several among which sessions are spread.

        `grace_s` is how much longer than its deadline a step is waited for: the server's own "timeout" says more than a cut connection.
        """
        self._urls = {env: [u.rstrip("/") for u in ([given] if isinstance(given, str) else given)] for env, given in urls.items()}
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.step_timeout_s, self.reset_timeout_s, self.max_retries = step_timeout_s, reset_timeout_s, max_retries
        self.backoff_s, self.grace_s = backoff_s, grace_s
        self._slots = asyncio.Semaphore(max_concurrency)
        self._open: Counter[str] = Counter()  # sessions per server
        self._closing: set[asyncio.Task] = set()
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Waits for sessions that are being closed, then closes the connections."""
        await asyncio.gather(*self._closing)
        if self._http is not None:
            await self._http.close()

    def session(self, env: str, task: Mapping[str, Any], *, seed: int = 0) -> Session:
        """An async context manager; leaving it closes the session. Raises ConfigError for an environment without a URL."""
        if not self._urls.get(env):
            raise unknown("env", env, self._urls, "Give its server's URL (env.url), or correct the row's env column.")
        return Session(self, env, dict(task), seed)

    async def check(self, url: str) -> EnvSchema:
        """What the server at `url` is. Raises EnvError with a remedy when none answers."""
        url = url.rstrip("/")
        try:
            return await self._send("GET", f"{url}/schema", None, EnvSchema, timeout_s=CONNECT_TIMEOUT_S)
        except (_Again, EnvTimeout) as e:
            raise EnvError(f"No environment server answers at {url} ({e}). Start one (`python -m env_servers.python_tir`), or correct env.url.") from None

    async def _call(self, path: str, request: BaseModel, kind: type[Wire], *, timeout_s: float, server: list[str], grace_s: float = 0.0) -> Wire:
        """POST until there is an answer. `server` holds the base URLs to try, rotated after a failure. Raises EnvError, EnvTimeout."""
        clock = asyncio.get_running_loop().time
        async with self._slots:
            give_up, failures, body = clock() + timeout_s, 0, request
            while True:
                url = server[0] + path
                left = give_up - clock()
                if left <= 0:
                    raise EnvTimeout(f"{url} had no room or no answer within {timeout_s:g} s. Add env workers, or raise env.step_timeout_s.")
                if isinstance(request, StepRequest):
                    body = request.model_copy(update={"deadline_s": left})
                try:
                    return await self._send("POST", url, body, kind, timeout_s=left + grace_s)
                except _Again as e:
                    pause = e.after_s
                    if pause is None:
                        failures += 1
                        if failures > self.max_retries:
                            raise EnvError(f"{url} failed {failures} times, the last time with: {e.fact}. Is the server alive?") from None
                        pause = min(5.0, self.backoff_s * 2 ** (failures - 1))
                        server.append(server.pop(0))
                # Jitter, so that a fleet that was refused together does not come back together.
                await asyncio.sleep(min(pause * random.uniform(0.5, 1.5), max(0.0, give_up - clock())))

    async def _send(self, method: str, url: str, body: BaseModel | None, kind: type[Wire], *, timeout_s: float) -> Wire:
        """One request. Raises _Again, EnvTimeout, EnvError."""
        if self._http is None:
            self._http = aiohttp.ClientSession(headers=self._headers, connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60))
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        data = None if body is None else body.model_dump_json().encode()
        try:
            async with self._http.request(method, url, data=data, headers={"Content-Type": "application/json"}, timeout=timeout) as response:
                content = await _read(response, url)
        except aiohttp.InvalidURL:
            raise EnvError(f"{url!r} is not a URL. Write http://host:port.") from None
        except aiohttp.ClientError as e:
            raise _Again(f"{type(e).__name__}: {e}") from e
        except TimeoutError:
            raise EnvTimeout(f"{url} did not answer within {timeout_s:g} s. Add env workers, or raise env.step_timeout_s.") from None
        if response.status == 429:
            raise _Again("the server is full (429)", after_s=_seconds(response.headers.get("Retry-After")))
        if response.status >= 500:
            raise _Again(f"HTTP {response.status}: {_excerpt(content)}")
        if response.status == 401:
            raise EnvError(f"{url} refused the bearer token (401). Set the variable that env.token_env names to the server's token.")
        if response.status != 200:
            raise EnvError(f"{url} answered HTTP {response.status}: {_excerpt(content)}")
        try:
            reply = kind.model_validate_json(content)
        except ValidationError as e:
            first = e.errors(include_url=False, include_input=False)[0]
            fact = f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}"
            raise EnvError(f"{url} sent no valid {kind.__name__}: {fact}; got {_excerpt(content)}. Does this server speak the protocol?") from None
        if isinstance(reply, StepReply) and reply.outcome == "capacity":
            raise _Again("the server is full", after_s=_seconds(str(reply.signals.get("retry_after_s", ""))))
        return reply


class Session:
    """One trajectory's environment; used by one coroutine."""

    def __init__(self, client: EnvClient, env: str, task: dict[str, Any], seed: int) -> None:
        self._client, self._env = client, env
        self._request = ResetRequest(task=task, seed=seed, session_id=uuid.uuid4().hex)
        self._server: str | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Closes the session in the background: an episode does not wait for it, and a cancelled one need not."""
        if self._server is not None:
            task = asyncio.create_task(self._close(self._server), name=f"close {self._request.session_id}")
            self._client._closing.add(task)
            task.add_done_callback(self._client._closing.discard)
            self._server = None

    async def reset(self) -> str:
        """The first observation. Raises EnvError, EnvTimeout."""
        c = self._client
        servers = sorted(c._urls[self._env], key=lambda url: (c._open[url], random.random()))
        reply = await c._call("/reset", self._request, ResetReply, timeout_s=c.reset_timeout_s, server=servers)
        self._server = (reply.server or servers[0]).rstrip("/")
        c._open[self._server] += 1
        return reply.observation

    async def step(self, action: str, *, step_id: int) -> StepReply:
        """Outcome ok or model_error. Raises EnvError, EnvTimeout."""
        if self._server is None:
            raise RuntimeError("step() before reset(): the session is not open.")
        c = self._client
        request = StepRequest(session_id=self._request.session_id, step_id=step_id, action=action, deadline_s=c.step_timeout_s)
        reply = await c._call("/step", request, StepReply, timeout_s=c.step_timeout_s, server=[self._server], grace_s=c.grace_s)
        if (reply.session_id, reply.step_id) != (request.session_id, step_id):
            raise EnvError(f"{self._server}/step answered for another step ({reply.session_id}/{reply.step_id}, asked {request.session_id}/{step_id}).")
        if reply.outcome in TRAINABLE_OUTCOMES:
            return reply
        if reply.outcome == "timeout":
            raise EnvTimeout(f"{self._server}/step missed its deadline of {c.step_timeout_s:g} s. Add env workers, or raise env.step_timeout_s.")
        raise EnvError(f"{self._server}/step failed with outcome {reply.outcome}: {reply.signals.get('error', 'no reason given')}")

    async def _close(self, server: str) -> None:
        c = self._client
        c._open[server] -= 1
        try:
            async with c._http.delete(f"{server}/session/{self._request.session_id}", timeout=aiohttp.ClientTimeout(total=CONNECT_TIMEOUT_S)):
                pass
        except (aiohttp.ClientError, TimeoutError) as e:
            log.debug("session %s was not closed (%s); it expires on the server", self._request.session_id, e)


async def _read(response: aiohttp.ClientResponse, url: str) -> bytes:
    content = bytearray()
    async for part in response.content.iter_any():
        content += part
        if len(content) > MAX_REPLY_BYTES:
            raise EnvError(f"{url} sent more than {MAX_REPLY_BYTES} bytes. Cap the environment's observation.")
    return bytes(content)


def _seconds(retry_after: str | None) -> float:
    """Retry-After in seconds; 1 when it is missing or a date."""
    try:
        return min(60.0, max(0.0, float(retry_after or 1)))
    except ValueError:
        return 1.0


def _excerpt(content: bytes) -> str:
    return repr(content[:200].decode("utf-8", "replace"))
