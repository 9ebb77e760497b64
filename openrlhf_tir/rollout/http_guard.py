"""HTTP guards: ASGI middleware in front of every route, mounted apps included. Bearer token and body limit."""

from __future__ import annotations

import hmac

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
