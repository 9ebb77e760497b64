"""Signal: wait for a condition over plain state, woken by whoever changes that state. No polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Signal:
    """One event loop only. State changes call `notify`; waiters look again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        self._event.set()

    async def until(self, predicate: Callable[[], bool]) -> None:
        while not predicate():
            self._event.clear()
            await self._event.wait()
