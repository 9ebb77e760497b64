"""One HTTP exchange with an environment server. It returns a valid reply, or raises whether it may be sent again.

    429, outcome capacity              Full           the server has no room, which is not a failure
    broken connection                  Unreachable    a Broken: the same request may be sent again
    500 with a defect of the code      EnvironmentCodeError   another try would end the same way (POST)
    504                                EnvTimeout     a reset that the server gave up
    any other 5xx                      Broken         the same request may be sent again; `after_s` has a Retry-After,
                                                      by which a session is opened elsewhere
    nothing within the deadline        EnvTimeout
    404 at /step                       EnvLost        the server does not know the session any more (`session_lost`)
    413 at /step or /step_batch        ActionTooLong  the model wrote more than the server takes, which is not a failure
    422 at /reset, with a sentence     TaskRefused    the server can make no episode of the row
    anything else                      EnvError       a refusal, or a reply that is not the protocol's (`InvalidReply`)

Replies are read up to MAX_REPLY_BYTES and never decompressed, so that no server can fill the actor's memory.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from ...errors import EnvError, EnvironmentCodeError, EnvLost, EnvTimeout, InfraError, TaskRefused
from ...protocol import CODE_DEFECT, MAX_REPLY_BYTES, StepReply, StepRequest
from .refusals import seconds

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 15.0
"""Seconds that a server has to close a session. A busy server is seconds behind, and if the request is given up before
the server reads it, the session keeps its place there until it expires. Less than engine_handle.STOP_DEADLINE: an actor
that stops waits for these requests."""
REFUSAL_BYTES = 1 << 15
"""Bytes that are read of the body of a refusal: room for a traceback."""
EXCERPT_BYTES = 200
"""Bytes of a body that a message shows."""
Wire = TypeVar("Wire", bound=BaseModel)


class Full(Exception):
    """The server has no room now.

    Attributes:
        after_s: Seconds after which to try again.
    """

    def __init__(self, after_s: float) -> None:
        super().__init__(f"the server is full for {after_s:g} s")
        self.after_s = after_s


class ActionTooLong(Exception):
    """The model wrote more than the server takes as one action."""


class Broken(Exception):
    """The exchange broke. It may be sent again with the same ids.

    Attributes:
        fact: What happened.
        after_s: Seconds after which to try again, if the server said so.
    """

    def __init__(self, fact: str, after_s: float | None = None) -> None:
        super().__init__(fact)
        self.fact = fact
        self.after_s = after_s


class Unreachable(Broken):
    """The connection broke, not one call on it: all other sessions on that server are hit as well."""


class InvalidReply(EnvError):
    """The server answered with something that is not the protocol's. It counts against the server, not only the call.

    Attributes:
        step: (session id, step id) of the step that a line of a batch answers, as far as the line says.
    """

    step: tuple[Any, Any] = (None, None)


class EnvHttp:
    """A pool of connections, closed by its owner. It does not limit concurrency; `Credits` does."""

    def __init__(self, token: str | None) -> None:
        """Create a pool without connections. `token` is the bearer token of the servers."""
        self._token = token
        self._http: aiohttp.ClientSession | None = None
        self._close_defects: set[str] = set()
        """Lines of user code that failed when a session was closed. Each is logged once."""

    async def close(self) -> None:
        """Close all connections."""
        if self._http is not None:
            await self._http.close()

    async def send(self, method: str, url: str, body: BaseModel | None, kind: type[Wire], *, timeout_s: float) -> Wire:
        """Send one request and return the reply.

        Args:
            method: HTTP method.
            url: The URL.
            body: The request's body, if it has one.
            kind: Model of the reply.
            timeout_s: Deadline in seconds.

        Raises:
            Full: The server has no room.
            Broken: The exchange broke.
            EnvTimeout: There was no reply in time.
            ActionTooLong: The server takes no step of this size.
            EnvironmentCodeError: The environment's own code failed.
            EnvError: The server refused the request, or its reply is not valid.
        """
        data = None if body is None else body.model_dump_json().encode()
        async with self._exchange(method, url, data, timeout_s) as response:
            content = await _read(response, MAX_REPLY_BYTES + 1)
        return _parse(content, kind, url)

    async def step_batch(
        self, server: str, requests: Sequence[StepRequest], *, timeout_s: float
    ) -> AsyncGenerator[StepReply | InvalidReply, None]:
        """Send steps to /step_batch and yield replies as they finish, refused items (outcome capacity) included.

        A line that is no valid reply is yielded as an error: the lines of the other steps may be valid. Errors that are
        raised are those of `send`, perhaps after some replies. Close the iterator early with `aclosing`.
        """
        url = f"{server}/step_batch"
        data = json.dumps([request.model_dump() for request in requests]).encode()
        async with self._exchange("POST", url, data, timeout_s) as response:
            line = bytearray()
            async for chunk in response.content.iter_any():
                *ends, beginning = chunk.split(b"\n")
                for end in ends:
                    line += end
                    if line:
                        yield _item(bytes(line), url)
                    line.clear()
                line += beginning
                del line[MAX_REPLY_BYTES + 1 :]  # one more than a reply may have, so that it is seen to be too long
            if line:
                yield _item(bytes(line), url)

    async def delete(self, url: str) -> None:
        """Delete a session if possible. What cannot be deleted now expires on the server.

        A bug in the `close` of a user's environment is logged: the session's samples are complete without it.
        """
        try:
            async with self._exchange("DELETE", url, None, CLOSE_TIMEOUT_S) as response:
                body = await _read(response, REFUSAL_BYTES)
            signals = _object(body).get("signals")
            if not isinstance(signals, dict):
                return
            defect = code_defect(url.partition("/session/")[0], signals)
            if defect is not None and (at := str(signals[CODE_DEFECT])) not in self._close_defects:
                self._close_defects.add(at)
                log.warning("A session was not closed as it should be. %s\n%s", defect, defect.user_traceback)
        except (Full, Broken, InfraError) as e:
            log.debug("DELETE %s: %s", url, e)

    @asynccontextmanager
    async def _exchange(
        self, method: str, url: str, data: bytes | None, timeout_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield the response once its status is 200."""
        if self._http is None:
            auth = {"Authorization": f"Bearer {self._token}"} if self._token else {}
            self._http = aiohttp.ClientSession(
                headers={"Content-Type": "application/json", "Accept-Encoding": "identity", **auth},
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
                auto_decompress=False,
            )
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        try:
            async with self._http.request(method, url, data=data, timeout=timeout, allow_redirects=False) as response:
                if response.status != 200:
                    raise await _refusal(response, url)
                yield response
        except (aiohttp.InvalidURL, UnicodeError):  # UnicodeError: a host that cannot be looked up, as "a..b"
            raise EnvError(f"{url!r} is not a URL. Write http://host:port.") from None
        except aiohttp.ConnectionTimeoutError as e:
            raise Unreachable(f"no connection within {CONNECT_TIMEOUT_S:g} s") from e
        except aiohttp.ClientError as e:
            raise Unreachable(f"{type(e).__name__}: {e}") from e
        except TimeoutError:
            raise EnvTimeout(
                f"{url} did not answer within {timeout_s:.3g} s. Add env workers, or raise env.step_timeout_s."
            ) from None


async def _refusal(response: aiohttp.ClientResponse, url: str) -> Exception:
    """Return the exception for a status other than 200."""
    retry_after = response.headers.get("Retry-After")
    if response.status == 429:
        return Full(seconds(retry_after))
    body = await _read(response, REFUSAL_BYTES)
    reason = excerpt(body)
    if response.status == 500 and response.method == "POST" and (defect := _defect_of(body, url)):
        return defect
    if response.status == 504:
        return EnvTimeout(
            f"{url}: {reason}. Make reset faster, or raise env.step_timeout_s: a reset has three times that."
        )
    if response.status >= 500:
        return Broken(f"HTTP {response.status}: {reason}", None if retry_after is None else seconds(retry_after))
    if response.status == 401:
        return EnvError(
            f"{url} refused the bearer token (401). Set the environment variable TIR_ENV_TOKEN to the server's token."
        )
    if response.status == 413 and url.endswith(("/step", "/step_batch")):
        return ActionTooLong(f"{url} answered HTTP 413: {reason}")
    if response.status == 404 and url.endswith("/step"):
        return session_lost(f"{url} answered HTTP 404: {reason}")
    if response.status == 422 and url.endswith("/reset") and _names_a_row(body):
        return TaskRefused(f"{url} can make no episode of this row (422): {reason}. Correct the row or leave it out.")
    return EnvError(f"{url} answered HTTP {response.status}: {reason}")


def _names_a_row(body: bytes) -> bool:
    """Return True if a 422 has a sentence about the row. A list of fields is a server of another protocol's version."""
    return isinstance(_object(body).get("detail"), str)


def _object(body: bytes) -> dict[str, Any]:
    """Return the JSON object that a body is, or of which it is the beginning; an empty one if it is none."""
    try:
        value = from_json(body, allow_partial=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def session_lost(answer: str) -> EnvLost:
    """Return the error for a step whose session the server does not know."""
    return EnvLost(f"The environment server does not know the session any more: {answer}. Was it restarted?")


def _defect_of(body: bytes, url: str) -> EnvironmentCodeError | None:
    """Return the defect of the environment's code that a reply of /reset reports; None if it reports none."""
    signals = _object(body).get("signals")
    return code_defect(url, signals) if isinstance(signals, dict) else None


def code_defect(env: str, signals: Mapping[str, Any]) -> EnvironmentCodeError | None:
    """Return the error for signals that report a defect of the environment's code; None if they report none."""
    if CODE_DEFECT not in signals:
        return None
    error = EnvironmentCodeError(
        f"Environment {env}: {signals[CODE_DEFECT]}: {signals.get('error', 'no reason given')}."
        " It is a bug in that line, or a task that it does not expect."
    )
    error.user_traceback = str(signals.get("traceback", ""))
    return error


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return the body, or its first `limit` bytes."""
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) >= limit:
            break
    return bytes(content[:limit])


def _parse(content: bytes, kind: type[Wire], url: str) -> Wire:
    reply = _validated(content, kind, url)
    if isinstance(reply, StepReply) and reply.outcome == "capacity":
        raise full(reply)
    return reply


def full(reply: StepReply) -> Full:
    """Return the error for a step that the server refused for want of room (outcome capacity)."""
    return Full(seconds(str(reply.signals.get("retry_after_s", ""))))


def _item(line: bytes, url: str) -> StepReply | InvalidReply:
    """Return the reply that a line of a batch is, or the error of the step that it answers."""
    try:
        return _validated(line, StepReply, url)
    except InvalidReply as fault:
        item = _object(line)
        fault.step = (item.get("session_id"), item.get("step_id"))
        return fault


def _validated(content: bytes, kind: type[Wire], url: str) -> Wire:
    if len(content) > MAX_REPLY_BYTES:
        raise InvalidReply(f"{url} sent more than {MAX_REPLY_BYTES} bytes. Limit the environment's observation.")
    try:
        return kind.model_validate_json(content)
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False)[0]
        fact = f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}"
        raise InvalidReply(
            f"{url} sent no valid {kind.__name__}: {fact}; got {excerpt(content)}. Does this server speak the protocol?"
        ) from None


def excerpt(content: bytes) -> str:
    """Return the beginning of a body, for a message."""
    return repr(content[:EXCERPT_BYTES].decode("utf-8", "replace"))
