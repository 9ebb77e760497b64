"""EnvHttp: one HTTP exchange with an environment server. What comes back is valid, or says whether it may be sent
again.

    429, outcome capacity              Full           the server has no room; no failure
    broken connection                  Unreachable    the same request may be sent again; a Broken
    5xx                                Broken         the same request may be sent again
    nothing within the deadline        EnvTimeout
    404 at /step                       EnvLost        the server has forgotten the session
    anything else                      EnvError       a refusal, or a reply that is not the protocol's (`EnvNonsense`)

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

from ..errors import EnvError, EnvironmentCodeError, EnvLost, EnvTimeout
from ..protocol import MAX_REPLY_BYTES, StepReply, StepRequest
from .refusals import seconds

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
REFUSAL_BYTES = 1 << 15
"""What is read of a body that says why there is no answer: room for a traceback."""
CODE_DEFECT = "code_defect"
"""The signal, "file:line", of a reply that says that the environment's code is wrong (protocol.py)."""
Wire = TypeVar("Wire", bound=BaseModel)


class Full(Exception):
    """The server has no room now. `after_s`: when to ask again."""

    def __init__(self, after_s: float) -> None:
        super().__init__(f"the server is full for {after_s:g} s")
        self.after_s = after_s


class Broken(Exception):
    """The exchange broke: with the same ids it may be sent again. `after_s` is set when the server said when."""

    def __init__(self, fact: str, after_s: float | None = None) -> None:
        super().__init__(fact)
        self.fact, self.after_s = fact, after_s


class Unreachable(Broken):
    """The connection broke, not one call on it: whoever else has a session there is hit as well."""


class EnvNonsense(EnvError):
    """The server answered with something not the protocol's: it counts against the server, not only the call."""


class EnvHttp:
    """A connection pool; one per process, closed by its owner. Limits on concurrency are `credits`'."""

    def __init__(self, token: str | None) -> None:
        self._token = token
        self._http: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def send(self, method: str, url: str, body: BaseModel | None, kind: type[Wire], *, timeout_s: float) -> Wire:
        """One request, one reply. Raises Full, Broken, EnvTimeout, EnvError."""
        data = None if body is None else body.model_dump_json().encode()
        async with self._exchange(method, url, data, timeout_s) as response:
            content = await _read(response, url)
        return _parse(content, kind, url)

    async def step_batch(
        self, server: str, requests: Sequence[StepRequest], *, timeout_s: float
    ) -> AsyncGenerator[StepReply, None]:
        """POST /step_batch: replies in the order in which they finish, refused items (outcome capacity) included.

        Raises Full, Broken, EnvTimeout, EnvError, also half-way. Close the iterator early with `aclosing`.
        """
        url = f"{server}/step_batch"
        data = json.dumps([r.model_dump() for r in requests]).encode()
        async with self._exchange("POST", url, data, timeout_s) as response:
            rest = bytearray()
            async for part in response.content.iter_any():
                *lines, last = part.split(b"\n")
                for line in lines:
                    rest += line
                    if rest:
                        yield _valid(bytes(rest), StepReply, url)
                    rest.clear()
                rest += last
                if len(rest) > MAX_REPLY_BYTES:
                    raise _too_large(url)
            if rest:
                yield _valid(bytes(rest), StepReply, url)

    async def delete(self, url: str) -> None:
        """Best effort: what cannot be deleted now expires on the server."""
        try:
            async with self._exchange("DELETE", url, None, CONNECT_TIMEOUT_S):
                pass
        except (Full, Broken, EnvTimeout, EnvError) as e:
            log.debug("DELETE %s: %s", url, e)

    @asynccontextmanager
    async def _exchange(
        self, method: str, url: str, data: bytes | None, timeout_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send; the response once its status is 200."""
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
        except aiohttp.InvalidURL:
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
    """What a status other than 200 means."""
    retry_after = response.headers.get("Retry-After")
    if response.status == 429:
        return Full(seconds(retry_after))
    body = await response.content.read(REFUSAL_BYTES)
    said = excerpt(body)
    if response.status == 500 and (defect := _defect_of(body, url)):
        return defect
    if response.status == 504:
        return EnvTimeout(f"{url}: {said}. Make reset quicker, or raise env.reset_timeout_s.")
    if response.status >= 500:
        return Broken(f"HTTP {response.status}: {said}", None if retry_after is None else seconds(retry_after))
    if response.status == 401:
        return EnvError(
            f"{url} refused the bearer token (401). Set the variable that env.token_env names (TIR_ENV_TOKEN, if unset)"
            " to the server's token."
        )
    if response.status == 404 and url.endswith("/step"):
        return EnvLost(f"{url} does not know the session any more (HTTP 404): {said}. Was the server restarted?")
    return EnvError(f"{url} answered HTTP {response.status}: {said}")


def _defect_of(body: bytes, url: str) -> EnvironmentCodeError | None:
    """The defect of the environment's code that an answer of /reset tells of."""
    try:
        told = json.loads(body)
        return code_defect(url, told.get("signals", {}))
    except (ValueError, AttributeError):
        return None


def code_defect(env: str, signals: Mapping[str, Any]) -> EnvironmentCodeError | None:
    """Return the error behind signals that say that the environment's code is wrong; None if they do not."""
    if CODE_DEFECT not in signals:
        return None
    error = EnvironmentCodeError(
        f"Environment {env}: {signals[CODE_DEFECT]}: {signals.get('error', 'no reason given')}."
        " It is a bug in that line, or a task that it does not expect."
    )
    error.traceback = str(signals.get("traceback", ""))
    return error


async def _read(response: aiohttp.ClientResponse, url: str) -> bytes:
    if (response.content_length or 0) > MAX_REPLY_BYTES:
        raise _too_large(url)
    content = bytearray()
    async for part in response.content.iter_any():
        content += part
        if len(content) > MAX_REPLY_BYTES:
            raise _too_large(url)
    return bytes(content)


def _too_large(url: str) -> EnvNonsense:
    return EnvNonsense(f"{url} sent more than {MAX_REPLY_BYTES} bytes. Cap the environment's observation.")


def _parse(content: bytes, kind: type[Wire], url: str) -> Wire:
    reply = _valid(content, kind, url)
    if isinstance(reply, StepReply) and reply.outcome == "capacity":
        raise Full(seconds(str(reply.signals.get("retry_after_s", ""))))
    return reply


def _valid(content: bytes, kind: type[Wire], url: str) -> Wire:
    try:
        return kind.model_validate_json(content)
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False)[0]
        fact = f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}"
        raise EnvNonsense(
            f"{url} sent no valid {kind.__name__}: {fact}; got {excerpt(content)}. Does this server speak the protocol?"
        ) from None


def excerpt(content: bytes) -> str:
    return repr(content[:200].decode("utf-8", "replace"))
