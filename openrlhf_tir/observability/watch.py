"""A web server for the live page of a run. It reads the run directory and changes nothing in it.

    GET /              the page
    GET /state.json    the part that changes all the time, and the versions of the others
    GET /figures       curves and tables
    GET /samples       sampled trajectories
    GET /picture/NAME.png

On a loopback address everyone on the machine may read the page, but only under a loopback name: this keeps out a web
page from elsewhere whose host name was made to resolve to 127.0.0.1. On any other address a token is required, once as
`?token=...` and then by a cookie, because samples may be confidential. A model wrote them, so no script in a fragment
may run.
"""

from __future__ import annotations

import hmac
from importlib.resources import files

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from .live_page import LivePage

COOKIE = "openrlhf_tir_watch"
LOOPBACK_NAMES = ["127.0.0.1", "localhost", "[::1]", "::1"]
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src 'self' data:; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def watch_app(page: LivePage, token: str | None = None) -> Starlette:
    """Return the ASGI application.

    Args:
        page: The live page that it serves.
        token: The token that a client must present; None if the caller binds a loopback address.
    """

    def index(request: Request) -> Response:
        return HTMLResponse(page.page())

    def state(request: Request) -> Response:
        return JSONResponse(page.state())

    def figures(request: Request) -> Response:
        return HTMLResponse(page.figures())

    def samples(request: Request) -> Response:
        return HTMLResponse(page.samples())

    def picture(request: Request) -> Response:
        image = page.picture(request.path_params["name"])
        if image is None:
            return PlainTextResponse("There is no such figure.", status_code=404)
        return Response(image, media_type="image/png")

    def script(request: Request) -> Response:
        source = files("openrlhf_tir.observability.report").joinpath("templates/watch.js").read_text(encoding="utf-8")
        return Response(source, media_type="text/javascript")

    async def guarded(request: Request, call_next: RequestResponseEndpoint) -> Response:
        if token is not None and not _carries_token(request, token):
            response: Response = PlainTextResponse(
                "This page needs the token that `openrlhf-tir watch` printed: open the whole address, with ?token=...",
                status_code=401,
            )
        elif token is not None and "token" in request.query_params:
            # The address bar, the history and screenshots are no place for a token.
            response = RedirectResponse(request.url.path, status_code=303)
            response.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        else:
            response = await call_next(request)
        response.headers.update(HEADERS)
        return response

    middleware = [Middleware(BaseHTTPMiddleware, dispatch=guarded)]
    if token is None:
        middleware.insert(0, Middleware(TrustedHostMiddleware, allowed_hosts=LOOPBACK_NAMES, www_redirect=False))
    routes = [
        Route("/", index),
        Route("/state.json", state),
        Route("/figures", figures),
        Route("/samples", samples),
        Route("/watch.js", script),
        Route("/picture/{name}.png", picture),
    ]
    return Starlette(routes=routes, middleware=middleware)


def _carries_token(request: Request, token: str) -> bool:
    """Return True if the request carries the token, in its address, its cookie or its header."""
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    candidates = (
        request.query_params.get("token", ""),
        request.cookies.get(COOKIE, ""),
        bearer if scheme.lower() == "bearer" else "",
    )
    return any(hmac.compare_digest(candidate.encode(), token.encode()) for candidate in candidates if candidate)
