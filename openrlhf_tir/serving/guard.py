"""HTTP guards: bearer token, body limit, and how many may be answered at once. ASGI, so that mounted apps are guarded as well."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BearerToken:
    """401 without `Authorization: Bearer <token>`; `token` None lets everyone in."""

    def __init__(self, app: ASGIApp, *, token: str | None, open_paths: frozenset[str]) -> None:
        self.app, self.open_paths = app, open_paths
        self.expected = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self.expected is None or scope["path"] in self.open_paths or self._allowed(scope):
            return await self.app(scope, receive, send)
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        answer = JSONResponse({"detail": "Missing or wrong bearer token. Send 'Authorization: Bearer <token>'."}, 401, {"WWW-Authenticate": "Bearer"})
        await answer(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return hmac.compare_digest(given, self.expected)


class BodyLimit:
    """413 for a body of more than `max_bytes`, whether its length is announced or it comes in chunks."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self.app, self.max_bytes, self.detail = app, max_bytes, f"Body exceeds {max_bytes} bytes."

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not announced.isdigit() or int(announced) > self.max_bytes:
            return await JSONResponse({"detail": self.detail}, 413)(scope, receive, send)
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.max_bytes:
                raise HTTPException(413, self.detail)  # in the route that reads the body; its app makes the answer
            return message

        await self.app(scope, counted, send)


class Slots:
    """At most `limit` at once; HTTPException 429 with Retry-After beyond."""

    def __init__(self, limit: int, what: str, retry_after_s: int) -> None:
        self.limit, self.what, self.used = limit, what, 0
        self.headers = {"Retry-After": str(retry_after_s)}

    @property
    def refusal(self) -> str:
        return f"{self.used} {self.what} are running, which is the limit. Try again."

    def take(self) -> None:
        if self.used >= self.limit:
            raise HTTPException(429, self.refusal, self.headers)
        self.used += 1

    def give_back(self) -> None:
        self.used -= 1

    @contextmanager
    def held(self) -> Iterator[None]:
        self.take()
        try:
            yield
        finally:
            self.give_back()


class Bounded:
    """A whole app behind Slots: a request holds one until the last byte of its answer."""

    def __init__(self, app: ASGIApp, slots: Slots) -> None:
        self.app, self.slots = app, slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        if self.slots.used >= self.slots.limit:
            return await JSONResponse({"detail": self.slots.refusal}, 429, self.slots.headers)(scope, receive, send)
        with self.slots.held():
            await self.app(scope, receive, send)
