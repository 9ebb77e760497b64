"""Give every refusal of an agent's request the form that OpenAI's clients read and show.

    {"error": {"message": "...", "type": "NotFoundError", "param": null, "code": "..."}, "detail": ...}

One place for everything that can refuse: the guard (401, 413, 422, 429), limits (429), the routes (404, 409, 422), the
engine (503). Errors that have this form already (vLLM's own) pass unchanged. `detail` is the original text.
"""

from __future__ import annotations

import json
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
"""Status -> OpenAI's name of the error; from 500 on it is InternalServerError."""


def is_for_agents(path: str) -> bool:
    """Return True for paths of agents: sessions, tasks, and the OpenAI app itself."""
    return path.startswith(("/sessions", "/agent/")) or (path.startswith("/v1/") and not path.startswith("/v1/groups"))


class OpenAIErrors:
    """ASGI middleware. It must be the outermost, so that it sees the guard's refusals too."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        applies = scope["type"] == "http" and is_for_agents(scope["path"])
        await self.app(scope, receive, _Converter(send) if applies else send)


class _Converter:
    """Converts a refusal. Its start is held back until its whole body is there."""

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
        body = openai_error(start["status"], self._body)
        headers = [(k, v) for k, v in start["headers"] if k.lower() not in (b"content-length", b"content-type")]
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self._send({**start, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def openai_error(status: int, body: bytes) -> bytes:
    """Return the body of a refusal in OpenAI's form."""
    try:
        content = json.loads(body)
    except ValueError:
        content = body.decode(errors="replace") or HTTPStatus(status).phrase
    if isinstance(content, dict) and isinstance(content.get("error"), dict):
        return body
    fields = content if isinstance(content, dict) else {"detail": content}
    detail = fields.get("detail", fields)
    kind = TYPES.get(status, "InternalServerError" if status >= 500 else "APIStatusError")
    code = fields.get("error")
    if not isinstance(code, str):
        code = HTTPStatus(status).phrase.lower().replace(" ", "_")
    return json.dumps(
        {"error": {"message": _message(detail), "type": kind, "param": None, "code": code}, "detail": detail}
    ).encode()


def _message(detail: Any) -> str:
    """Return the detail in one line; of FastAPI's list of mistakes each with its location."""
    if isinstance(detail, list) and all(isinstance(e, dict) for e in detail):
        return "; ".join(f"{'.'.join(map(str, e.get('loc', ())))}: {e.get('msg', '')}" for e in detail)
    return detail if isinstance(detail, str) else json.dumps(detail)
