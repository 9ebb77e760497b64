"""OpenAI errors: whatever refuses a request of an agent, in the shape that OpenAI's clients read and show.

    {"error": {"message": "...", "type": "NotFoundError", "param": null, "code": "..."}, "detail": ...}

One place for all that may refuse: the guard (401, 413, 422, 429), bounds (429), our routes (404, 409, 422), the engine
(503). Errors that are in this shape already (vLLM's own) pass as they are; `detail` is what it said before."""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    409: "ConflictError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
}
"""OpenAI's names; from 500 on it is InternalServerError."""


def of_agents(path: str) -> bool:
    """Whether agents ask for it: sessions, tasks, and the OpenAI app itself."""
    return path.startswith(("/sessions", "/agent/")) or (path.startswith("/v1/") and not path.startswith("/v1/groups"))


class OpenAIErrors:
    """ASGI middleware; the outermost, so that it sees the guard's refusals too."""

    def __init__(self, app: ASGIApp, applies: Callable[[str], bool] = of_agents) -> None:
        self.app, self.applies = app, applies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        shaped = scope["type"] == "http" and self.applies(scope["path"])
        await self.app(scope, receive, _Shaped(send) if shaped else send)


class _Shaped:
    """Holds the start of a refusal back until its body is there."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] >= 400:
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._refuse(self._start)

    async def _refuse(self, start: Message) -> None:
        body = shaped(start["status"], self._body)
        headers = [(k, v) for k, v in start["headers"] if k.lower() not in (b"content-length", b"content-type")]
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self._send({**start, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def shaped(status: int, body: bytes) -> bytes:
    """A refusal's body in OpenAI's shape."""
    try:
        said = json.loads(body)
    except ValueError:
        said = body.decode(errors="replace") or HTTPStatus(status).phrase
    if isinstance(said, dict) and isinstance(said.get("error"), dict):
        return body
    told = said if isinstance(said, dict) else {"detail": said}
    detail = told.get("detail", told)
    kind = TYPES.get(status, "InternalServerError" if status >= 500 else "APIStatusError")
    code = (
        told.get("error") if isinstance(told.get("error"), str) else HTTPStatus(status).phrase.lower().replace(" ", "_")
    )
    return json.dumps(
        {"error": {"message": _message(detail), "type": kind, "param": None, "code": code}, "detail": detail}
    ).encode()


def _message(detail: Any) -> str:
    """One line; of FastAPI's list of mistakes each with its place."""
    if isinstance(detail, list) and all(isinstance(e, dict) for e in detail):
        return "; ".join(f"{'.'.join(map(str, e.get('loc', ())))}: {e.get('msg', '')}" for e in detail)
    return detail if isinstance(detail, str) else json.dumps(detail)
