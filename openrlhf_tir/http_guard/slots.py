"""Bound how many requests are answered at once. Beyond that the answer is 429, with the time to come back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send


class Slots:
    """At most `limit` slots that are taken at once."""

    def __init__(self, limit: int, what: str, retry_after_s: int) -> None:
        """Create free slots.

        Args:
            limit: Their number.
            what: What takes them, in the plural, for the refusal.
            retry_after_s: Seconds after which a refused client may try again.
        """
        self.limit = limit
        self.what = what
        self.used = 0
        self.headers = {"Retry-After": str(retry_after_s)}

    def take(self) -> None:
        """Take a slot. Raises HTTPException (429) if none is free."""
        if self.used >= self.limit:
            detail = f"{self.used} {self.what} are running, which is the limit. Try again."
            raise HTTPException(429, detail, self.headers)
        self.used += 1

    def give_back(self) -> None:
        """Free a slot that was taken."""
        self.used -= 1

    @contextmanager
    def held(self) -> Iterator[None]:
        """Take a slot for the time of the block. Raises HTTPException (429) if none is free."""
        self.take()
        try:
            yield
        finally:
            self.give_back()


class Bounded:
    """An app that is mounted in another one, whose requests hold a slot until the last byte of their answer."""

    def __init__(self, app: ASGIApp, slots: Slots) -> None:
        self.app = app
        self.slots = slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.slots.held():
            await self.app(scope, receive, send)
