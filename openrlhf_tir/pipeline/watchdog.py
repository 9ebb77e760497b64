"""Watchdog: nothing progressed for too long -> say which edge is blocked, dump every task, abort."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Callable

from ..errors import StallError

log = logging.getLogger(__name__)


class Watchdog:
    """`beat` on every finished group and step. `describe` names who waits for what."""

    def __init__(self, timeout_s: float, describe: Callable[[], str]) -> None:
        self.timeout_s, self.describe = timeout_s, describe
        self._last = 0.0

    def beat(self) -> None:
        self._last = asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Raises StallError `timeout_s` after the last beat."""
        self.beat()
        loop = asyncio.get_running_loop()
        while (left := self._last + self.timeout_s - loop.time()) > 0:
            await asyncio.sleep(left)
        log.error("Stalled. Tasks:\n%s", _stacks())
        raise StallError(f"No progress for {self.timeout_s:.0f} s: {self.describe()}. Fix what is named, then start again with --resume.")


def _stacks() -> str:
    out = io.StringIO()
    for task in asyncio.all_tasks():
        task.print_stack(limit=6, file=out)
    return out.getvalue()
