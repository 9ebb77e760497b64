"""The launcher of train.max_restarts, as the process that it starts knows it."""

from __future__ import annotations

import os
import time

import psutil

LAUNCHER = "OPENRLHF_TIR_LAUNCHER"
"""Environment variable with the process id of the launcher (cli/restarts.py). It counts for the launcher's own child
alone, not for commands that the child starts."""


def seconds_up() -> float:
    """Return the seconds since the command was given.

    With train.max_restarts that is the age of the launcher, however often it has started this process again.
    """
    parent = os.getppid()
    began = parent if os.environ.get(LAUNCHER) == str(parent) else os.getpid()
    return time.time() - psutil.Process(began).create_time()
