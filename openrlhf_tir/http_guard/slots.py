"""Slots: how many may be answered at once. Beyond that 429, with the time to come back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send


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
