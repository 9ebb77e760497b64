"""Reaper: all that an actor started ends with it, however it ended. vLLM's engine process outlives a SIGKILL of the
actor, with the GPU's memory.

The actor becomes the leader of a process group, which its children are in (vLLM's engine and workers start no group of
their own). A process of another session waits for the actor's end, by a descriptor of it, and kills the group. Neither
is asked anything of by what it watches, so it also works for what hangs, and whatever Ray's own clean-up is set to.
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
"""Deadline of the reaper's own start, which takes 30 ms; on a starved machine seconds."""


def end_children_with_us() -> bool:
    """Call before any child is started. False, with a warning, where the system has no descriptors of processes (Linux
    before 5.3, a sandbox)."""
    try:
        if os.getpgrp() != os.getpid():
            os.setpgid(0, 0)
        us = os.pidfd_open(os.getpid())
    except OSError as e:
        logging.getLogger(__name__).warning("what this actor starts may outlive it when it is killed: %s", e.strerror)
        return False
    try:
        command = [sys.executable, "-I", "-S", __file__, str(us), str(os.getpgrp())]
        quiet = subprocess.DEVNULL
        subprocess.run(
            command,
            pass_fds=(us,),
            start_new_session=True,
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
            check=True,
            timeout=START_S,
        )
    finally:
        os.close(us)
    return True


def _reap(watched: int, group: int) -> None:
    """No child of the actor any more, or Ray would end it together with the actor: then it would reap nobody."""
    if os.fork():
        os._exit(0)
    ended = select.poll()
    ended.register(watched, select.POLLIN)
    ended.poll()
    with suppress(ProcessLookupError):  # no member is left
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    _reap(int(sys.argv[1]), int(sys.argv[2]))
