"""End a command that runs in a session of its own, with everything that it has started."""

from __future__ import annotations

import os
import signal
import subprocess


def end_process(process: subprocess.Popen, grace_s: float) -> None:
    """Ask a process that still runs to stop, and kill it and its group if it does not.

    Args:
        process: A process that was started with `start_new_session`. Ctrl-C at the terminal then does not reach it, so
            that it is asked once: a second signal would end a run without a checkpoint.
        grace_s: Seconds that it has to end after it was asked.
    """
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(grace_s)
