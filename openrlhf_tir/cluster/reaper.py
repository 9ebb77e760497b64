"""End everything that an actor started when the actor ends, in whatever way. vLLM's engine process, and with it the
GPU's memory, would survive a SIGKILL of the actor.

The actor becomes the leader of a process group that contains its children (vLLM's engine and workers start no group of
their own). A process of another session waits for the actor's end, by its descriptor, and kills the group. It needs
nothing from the processes that it watches, so it also works if they hang, and whatever Ray's own clean-up is set to.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress

START_S = 60
"""Deadline of the reaper's own start in seconds. It takes 30 ms, on a busy machine seconds."""


def end_children_with_us() -> bool:
    """Start the reaper. Call this before any child is started.

    Returns:
        False, with a warning, if the system has no process descriptors (Linux before 5.3, a sandbox).
    """
    try:
        if os.getpgrp() != os.getpid():
            os.setpgid(0, 0)
        own_descriptor = os.pidfd_open(os.getpid())
    except OSError as e:
        logging.getLogger(__name__).warning("what this actor starts may outlive it when it is killed: %s", e.strerror)
        return False
    try:
        command = [sys.executable, "-I", "-S", __file__, str(own_descriptor), str(os.getpgrp())]
        devnull = subprocess.DEVNULL
        subprocess.run(
            command,
            pass_fds=(own_descriptor,),
            start_new_session=True,
            stdin=devnull,
            stdout=devnull,
            stderr=devnull,
            check=True,
            timeout=START_S,
        )
    finally:
        os.close(own_descriptor)
    return True


def _reap(watched: int, group: int) -> None:
    """Wait until the watched process ends, and kill its group."""
    # The reaper must not be a child of the actor: Ray would end it together with the actor.
    if os.fork():
        os._exit(0)
    ended = select.poll()
    ended.register(watched, select.POLLIN)
    ended.poll()
    with suppress(ProcessLookupError):  # no member is left
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    _reap(int(sys.argv[1]), int(sys.argv[2]))
