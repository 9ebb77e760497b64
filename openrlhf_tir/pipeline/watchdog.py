"""Watchdog: nothing progressed for too long -> name the blocked edge, dump every task's stack to a file, save what can
be saved, abort."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from ..errors import StallError
from ..suspension import SLICES, awake_time, lateness
from .diagnosis import stacks

log = logging.getLogger(__name__)
DUMP = "stall.txt"
RESCUE_TIMEOUT_S = 300.0
"""What stalled the run may stall its last checkpoint too."""


class Watchdog:
    """`beat` on all groups and phases. `describe` names who waits for what; `rescue` writes a checkpoint.

    Time in which this process was suspended (SIGSTOP, a paused container) does not count: nothing could progress.
    """

    def __init__(
        self, timeout_s: float, describe: Callable[[], str], rescue: Callable[[], Awaitable[str]], run_dir: Path
    ) -> None:
        self.timeout_s, self.describe, self.rescue, self.dump = timeout_s, describe, rescue, run_dir / DUMP
        self._last = 0.0
        """Awake time of the last beat."""

    def beat(self) -> None:
        self._last = awake_time()

    async def run(self) -> None:
        """Raises StallError `timeout_s` after the last beat."""
        self.beat()
        while (left := self._last + self.timeout_s - awake_time()) > 0:
            # In parts, of which one that lasts too long shows that this process was suspended meanwhile.
            part_s = min(left, self.timeout_s / SLICES)
            began = awake_time()
            await asyncio.sleep(part_s)
            self._last = min(self._last + lateness(began, part_s), awake_time())
        said = f"No progress for {self.timeout_s:.0f} s: {self.describe()}."
        log.error(said)
        raise StallError(
            f"{said} {self._dumped(said)} {await self._save()} Fix what is named, then start again with --resume."
        )

    def _dumped(self, said: str) -> str:
        """A disk that refuses may be what stalled the run."""
        try:
            self.dump.write_text(f"{said}\n\n{stacks()}")
        except OSError as e:
            return f"The stacks of all tasks could not be written ({e})."
        return f"Stacks of all tasks: {self.dump}."

    async def _save(self) -> str:
        try:
            async with asyncio.timeout(RESCUE_TIMEOUT_S):
                return await self.rescue()
        except Exception as e:  # the stall is what must be reported, whatever else is broken
            return f"No checkpoint could be written ({type(e).__name__}: {e}); the one before counts."
