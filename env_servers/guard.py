"""Guard: what every request passes first (plain ASGI). 401 without the bearer token, 413 above the body limit.

`/health` is open, so that a load balancer needs no secret.
"""

from __future__ import annotations

import asyncio
import hmac
import json

LINGER_S = 30.0
"""How long what a refused client still sends is read and forgotten."""


class Guard:
    def __init__(self, app, *, token: str | None, max_body_bytes: int) -> None:
        self.app, self.max_body_bytes = app, max_body_bytes
        self._expected = f"Bearer {token}".encode() if token else None

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = dict(scope["headers"])
        if self._expected and scope["path"] != "/health" and not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
            return await _refuse(send, 401, "Missing or wrong bearer token. Send 'Authorization: Bearer <token>'.")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.max_body_bytes:
            return await _refuse(send, 413, f"Body of {length.decode('latin1')} bytes exceeds the limit of {self.max_body_bytes}.", receive)
        body, replied = await _read(receive, self.max_body_bytes), False
        if body is None:
            return await _refuse(send, 413, f"Body exceeds the limit of {self.max_body_bytes} bytes.", receive)

        async def replay():
            nonlocal replied
            if replied:
                return await receive()
            replied = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, replay, send)


async def _read(receive, limit: int) -> bytes | None:
    """The whole body, or None when a chunked one grows above `limit` (it has no Content-Length to refuse it by)."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"".join(parts)
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            return None
        if not message.get("more_body"):
            return b"".join(parts)


async def _refuse(send, status: int, detail: str, receive=None) -> None:
    """Answer at once. With `receive`, the connection stays open until the client has sent all or hears the answer and hangs up:
    closed any earlier, it is reset under a client that still sends, and the answer is lost (nginx calls this a lingering close)."""
    body = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": receive is not None})
    if receive is not None:
        try:
            async with asyncio.timeout(LINGER_S):
                while (message := await receive())["type"] == "http.request" and message.get("more_body"):
                    pass
        except TimeoutError:
            pass
        await send({"type": "http.response.body"})
