"""Parent: a process that ends with the one that started it, however that went (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal

from ..errors import ConfigError

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """SIGTERM to this process once `parent` is no more. Raises ConfigError when it is not our parent (any more)."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        raise ConfigError(f"--die-with-parent does not work here: {os.strerror(ctypes.get_errno())}. Leave it out.")
    if os.getppid() != parent:  # it may have ended before the call above, or never was
        raise ConfigError(
            f"--die-with-parent {parent}: the process that started this one is {os.getppid()}."
            " Was the launcher killed? Start it again."
        )
