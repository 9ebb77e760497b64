"""Wakeup: lets tasks of one event loop wait for a condition over plain state, without polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Wakeup:
    """Wakes waiting tasks whenever the state that they look at may have changed.

    Unlike `asyncio.Condition` it needs no lock, so `notify` can be called from a function that does not await.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Have every task in `until` evaluate its condition again."""
        self._event.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` returns True. It is evaluated at once, then after every `notify`."""
        while not condition():
            self._event.clear()
            await self._event.wait()
