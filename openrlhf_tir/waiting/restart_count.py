"""Count restarts of what dies, and forget those before a new checkpoint: a long run may lose more than a short one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class RestartCount:
    """Restarts since the newest checkpoint.

    Attributes:
        allowed: Restarts in a row without a new checkpoint.
        used: How many of them were taken.
    """

    def __init__(self, allowed: int, newest: Callable[[], Any]) -> None:
        """Create a count of 0.

        Args:
            allowed: Restarts in a row without a new checkpoint.
            newest: Returns a value that is another one for each new checkpoint; None if there is none.
        """
        self.allowed = allowed
        self.used = 0
        self._newest = newest
        self._seen: Any = None

    def take(self) -> bool:
        """Count one more restart and return True, or return False if none is left."""
        newest = self._newest()
        if newest not in (None, self._seen):
            self._seen = newest
            self.used = 0
        if self.used == self.allowed:
            return False
        self.used += 1
        return True

    def __str__(self) -> str:
        return f"restart {self.used} of {self.allowed} without a new checkpoint"
