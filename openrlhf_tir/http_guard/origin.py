"""Refuse the requests that a web page sends to a server without a token, unless the page is the server's own.

A server on loopback without a token is open to every program of the machine, and a browser runs programs of strangers:
a page may open a WebSocket to 127.0.0.1, or post to it, without asking. Browsers send `Origin` with such requests, and
other clients do not. A page's own server is one whose origin is the address that was asked; that address must be an IP
address or localhost, since a stranger's name may be made to mean 127.0.0.1 (DNS rebinding).
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

REFUSED = "Requests of web pages from elsewhere are refused, as this server has no token"


def is_foreign(scope: Scope, allowed: Collection[str] = ()) -> bool:
    """Return True if a request comes from a web page of another origin.

    Args:
        scope: The request.
        allowed: Origins that may send requests all the same, such as "http://127.0.0.1:3000".
    """
    headers = dict(scope["headers"])
    origin = headers.get(b"origin", b"").decode("latin1")
    if not origin or origin in allowed:
        return False
    try:
        asking = urlsplit(origin)
        asked = urlsplit(f"//{headers.get(b'host', b'').decode('latin1')}")
        return not asked.netloc or asking.netloc.lower() != asked.netloc.lower() or not _is_address(asked.hostname)
    except ValueError:
        return True


def _is_address(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        ip_address(host or "")
    except ValueError:
        return False
    return True


class OwnOrigin:
    """An app that web pages of other origins cannot reach, by HTTP or WebSocket (plain ASGI)."""

    def __init__(self, app: ASGIApp, allowed: Collection[str] = ()) -> None:
        self.app = app
        self.allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or not is_foreign(scope, self.allowed):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            # Closed before it is accepted: the handshake is answered with 403.
            await send({"type": "websocket.close", "code": 1008})
        else:
            await PlainTextResponse(f"{REFUSED}.", 403)(scope, receive, send)
