"""Web pages of other origins and a server without a token, by HTTP and by WebSocket."""

from __future__ import annotations

import pytest

from openrlhf_tir.http_guard.origin import OwnOrigin


async def asked(kind: str, origin: bytes | None, allowed=()) -> str:
    """ "app" where the app is reached, else what is answered."""
    reached = []

    async def app(scope, receive, send):
        reached.append("app")

    async def send(message):
        reached.append(str(message.get("status", message["type"])))

    headers = [(b"host", b"127.0.0.1:8000")] + ([(b"origin", origin)] if origin else [])
    await OwnOrigin(app, allowed)({"type": kind, "headers": headers, "path": "/ws"}, None, send)
    return reached[0]


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_only_the_servers_own_pages_and_programs_reach_it(kind):
    refused = {"http": "403", "websocket": "websocket.close"}[kind]
    assert await asked(kind, None) == "app"
    assert await asked(kind, b"http://127.0.0.1:8000") == "app"
    assert await asked(kind, b"http://evil.example") == refused
    assert await asked(kind, b"null") == refused
    assert await asked(kind, b"http://127.0.0.1:3000") == refused
    assert await asked(kind, b"http://127.0.0.1:3000", ["http://127.0.0.1:3000"]) == "app"
