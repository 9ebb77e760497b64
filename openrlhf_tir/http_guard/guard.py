"""Check every request before the app sees it (plain ASGI, so that mounted apps are guarded as well).

    401   without the bearer token, where there is one; OPEN_PATH needs none
    403   of a web page from elsewhere, where there is no token (origin)
    413   a body of more than `max_body_bytes`, whether its length was given or it comes in chunks
    408   a body that has not arrived within `body_timeout_s`
    429   bodies of all requests together above `held_bytes`: what is being received or answered
    422   JSON that is none (json_body)

The body is read before the app is called: no handler waits for a client that sends slowly.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import json_body
from .origin import REFUSED, is_foreign

OPEN_PATH = "/health"
"""The path that needs no token."""
LINGER_S = 30.0
"""Longest time in seconds for which what a refused client still sends is read and dropped."""
LINGER_S_OF_A_SLOW_CLIENT = 1.0
"""The same for a client that has used up its time: it is long enough to hear the answer."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits of the bodies of requests."""

    max_body_bytes: int = 4 << 20
    body_timeout_s: float = 60.0
    """Seconds that may pass from the end of the header to the end of the body."""
    held_bytes: int = 256 << 20
    """Bytes of all bodies at once, until their requests are answered. Parsed, a body takes a few times its size."""


class _Refused(Exception):
    """The request is refused; `args` are the status and the detail."""


class Guard:
    """An app behind the checks of this module."""

    def __init__(self, app: ASGIApp, *, token: str | None, limits: BodyLimits) -> None:
        """Guard an app. Without a token everyone may use it, except for web pages from elsewhere."""
        self.app = app
        self.limits = limits
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._held = 0
        """Bytes of the bodies that are being received or answered."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] == "websocket":  # nobody serves one, and it would pass none of what follows
            return await send({"type": "websocket.close", "code": 1008})
        if not self._allowed(scope):
            return await refuse(
                send, receive, 401, "Missing or wrong bearer token. Send 'Authorization: Bearer <token>'."
            )
        if self._expected is None and is_foreign(scope):
            return await refuse(send, receive, 403, f"{REFUSED}. Give it one, or ask from a program.")
        refusal = None
        linger_s = LINGER_S
        # Answered only after the handlers: while one runs, the frames of its exception hold what was read.
        try:
            async with asyncio.timeout(self.limits.body_timeout_s):
                body = await self._read(scope, receive)
        except _Refused as e:
            refusal = e.args
        except TimeoutError:
            refusal = 408, f"The body did not arrive within {self.limits.body_timeout_s:g} s."
            linger_s = LINGER_S_OF_A_SLOW_CLIENT
        if refusal is not None:
            return await refuse(send, receive, *refusal, linger_s=linger_s)
        if body is None:
            return None  # the client left half-way: nobody is there to be answered
        try:
            if body and json_body.is_json(_header(scope, b"content-type")) and (fault := json_body.fault(body)):
                await refuse(send, None, 422, [fault])
            else:
                await self.app(scope, replayed(body, receive), send)
        finally:
            self._held -= len(body)

    def _allowed(self, scope: Scope) -> bool:
        return (
            self._expected is None
            or scope["path"] == OPEN_PATH
            or hmac.compare_digest(_header(scope, b"authorization"), self._expected)
        )

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the body, which counts as held from now on; None if the client left first. Raises _Refused."""
        limit = self.limits.max_body_bytes
        length = _header(scope, b"content-length") or b"0"
        if not length.isdigit() or len(length) > 18 or int(length) > limit:
            raise _Refused(413, f"Body of {length[:20].decode('latin1')} bytes exceeds the limit of {limit}.")
        body = bytearray()
        try:
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return None
                part = message.get("body", b"")
                body += part
                self._held += len(part)
                if len(body) > limit:
                    raise _Refused(413, f"Body exceeds the limit of {limit} bytes.")
                if self._held > self.limits.held_bytes:
                    raise _Refused(
                        429,
                        f"Requests being answered hold {self.limits.held_bytes >> 20} MiB,"
                        " which is the limit. Try again.",
                    )
                if not message.get("more_body"):
                    self._held += len(body)
                    return bytes(body)
        finally:
            self._held -= len(body)


def replayed(body: bytes, receive: Receive) -> Receive:
    """Return what an app receives if the request's body was read before it: the body at once, then what is to come."""
    is_first = True

    async def receive_body_first() -> Message:
        nonlocal is_first
        if not is_first:
            return await receive()
        is_first = False
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_body_first


def _header(scope: Scope, name: bytes) -> bytes:
    return next((value for key, value in scope["headers"] if key == name), b"")


async def refuse(
    send: Send, receive: Receive | None, status: int, detail: object, *, linger_s: float = LINGER_S
) -> None:
    """Answer at once with an error.

    With `receive` the connection takes no other request, and stays open until the client has sent all or hears the
    answer and hangs up, at most `linger_s` seconds: closed any earlier, it is reset under a client that still sends,
    and the answer is lost (nginx: lingering close).

    Args:
        send: Sends the answer.
        receive: Receives what is left of the request; None if its body was read.
        status: The HTTP status.
        detail: What the answer says, as JSON can hold it.
        linger_s: See above.
    """
    body = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if receive is not None:
        headers.append((b"connection", b"close"))
    if status == 429:
        headers.append((b"retry-after", b"1"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": receive is not None})
    if receive is not None:
        try:
            async with asyncio.timeout(linger_s):
                while (message := await receive())["type"] == "http.request" and message.get("more_body"):
                    pass
        except TimeoutError:
            pass
        await send({"type": "http.response.body"})
