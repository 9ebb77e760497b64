"""Watchdog: when nothing has progressed for too long, name what blocks the run, save what can be saved, and abort."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from ..errors import StallError
from ..waiting.suspension import SLICES, awake_time, lateness
from .diagnosis import stacks

log = logging.getLogger(__name__)
DUMP = "stall.txt"
RESCUE_TIMEOUT_S = 300.0
"""Seconds for the last checkpoint: what stalled the run may stall it too."""


class Watchdog:
    """Ends a run in which no group and no phase has ended for `timeout_s` seconds.

    Time in which this process was suspended (SIGSTOP, a paused container) does not count: nothing could progress.
    """

    def __init__(
        self, timeout_s: float, describe: Callable[[], str], rescue: Callable[[], Awaitable[str]], run_dir: Path
    ) -> None:
        """Create a watchdog.

        Args:
            timeout_s: Seconds without progress after which the run ends (Config.stall_timeout_s).
            describe: Returns text that says who waits for what.
            rescue: Writes a checkpoint if possible, and returns text that says what became of it.
            run_dir: Directory for the stacks of all tasks.
        """
        self.timeout_s = timeout_s
        self.describe = describe
        self.rescue = rescue
        self.dump = run_dir / DUMP
        self._last = 0.0
        """Awake time of the last beat."""

    def beat(self) -> None:
        """Record progress: a group or a phase of the trainer has ended."""
        self._last = awake_time()

    async def run(self) -> None:
        """Watch until cancelled.

        Raises:
            StallError: Nothing has progressed for `timeout_s` seconds.
        """
        self.beat()
        while (left := self._last + self.timeout_s - awake_time()) > 0:
            # Sleep in slices. A slice that lasts too long shows that this process was suspended meanwhile.
            part_s = min(left, self.timeout_s / SLICES)
            began = awake_time()
            await asyncio.sleep(part_s)
            self._last = min(self._last + lateness(began, part_s), awake_time())
        message = f"No progress for {self.timeout_s:.0f} s: {self.describe()}."
        log.error(message)
        stacks_message = self._write_stacks(message)
        checkpoint_message = await self._save()
        raise StallError(
            f"{message} {stacks_message} {checkpoint_message} Fix what is named, then start again with --resume."
        )

    def _write_stacks(self, message: str) -> str:
        """Write the stacks of all tasks, and return a sentence about it. A full disk may be what stalled the run."""
        try:
            self.dump.write_text(f"{message}\n\n{stacks()}")
        except OSError as e:
            return f"The stacks of all tasks could not be written ({e})."
        return f"Stacks of all tasks: {self.dump}."

    async def _save(self) -> str:
        try:
            async with asyncio.timeout(RESCUE_TIMEOUT_S):
                return await self.rescue()
        except Exception as e:  # the stall is what must be reported, whatever else is broken
            return f"No checkpoint could be written ({type(e).__name__}: {e}); the one before counts."
