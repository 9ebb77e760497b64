"""End with the process that started this one, in whatever way that one ends (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> bool:
    """Have the kernel send SIGTERM to this process when `parent` ends.

    Args:
        parent: Process id of the parent of this process.

    Returns:
        False if it is not the parent, because it ended before this call or never was.

    Raises:
        OSError: The kernel refuses.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return os.getppid() == parent
