"""Watch: the live page of a run as a web server. Reads the run directory, changes nothing in it.

    GET /              the page
    GET /state.json    what changes all the time, and the versions of the rest
    GET /figures       curves and tables
    GET /samples       what was sampled
    GET /picture/NAME.png?dark=1&narrow=1

On a loopback address everyone on the machine may read it, but only under a loopback name: a web page from elsewhere
whose host name was turned to 127.0.0.1 may not. On any other address a token is asked for, once as `?token=...`, then
by a cookie. The samples of a run may be confidential, and a model wrote them: no script of a fragment runs.
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
    """The ASGI application. `token` None: the caller binds a loopback address."""

    def index(request: Request) -> Response:
        return HTMLResponse(page.page())

    def state(request: Request) -> Response:
        return JSONResponse(page.state())

    def figures(request: Request) -> Response:
        return HTMLResponse(page.figures())

    def samples(request: Request) -> Response:
        return HTMLResponse(page.samples())

    def picture(request: Request) -> Response:
        asked = request.query_params
        image = page.picture(request.path_params["name"], dark="dark" in asked, narrow="narrow" in asked)
        if image is None:
            return PlainTextResponse("There is no such figure.", status_code=404)
        return Response(image, media_type="image/png")

    def script(request: Request) -> Response:
        source = files("openrlhf_tir.report").joinpath("templates/watch.js").read_text(encoding="utf-8")
        return Response(source, media_type="text/javascript")

    async def guarded(request: Request, call_next: RequestResponseEndpoint) -> Response:
        if token is not None and not _knows(request, token):
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


def _knows(request: Request, token: str) -> bool:
    """Whether the request carries the token, in its address, cookie or header."""
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    given = (
        request.query_params.get("token", ""),
        request.cookies.get(COOKIE, ""),
        bearer if scheme.lower() == "bearer" else "",
    )
    return any(hmac.compare_digest(g.encode(), token.encode()) for g in given if g)
