"""Directories of a node in which its engines keep pushed weights or sockets, and their removal after a crash.

For weights there is one directory, a *room*, for each directory that the learner pushes to. Every process that uses a
room holds a shared flock on the file HELD in it. The kernel releases the lock however the process ends.

    Room(directory).hold()   mkdir, flock(LOCK_SH)
    sweep(root)              removes the rooms that nobody holds, because all of their processes were killed
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)
PREFIX = "tir_node_"
HELD = "held"
RETRY_S = 0.05
"""Seconds between two attempts while another process removes the room. flock itself has no deadline."""


class Room:
    """One process's hold on a room."""

    def __init__(self, here: Path) -> None:
        self.here = here
        self._fd: int | None = None

    def hold(self, wait_s: float) -> None:
        """Create the directory if needed, and make sure that nobody sweeps it from now on.

        Args:
            wait_s: Seconds to wait while another process removes the room.

        Raises:
            TimeoutError: Another process removed it for longer than `wait_s`.
            OSError: The directory cannot be created or locked.
        """
        give_up = time.monotonic() + wait_s
        while not self._is_held():
            self.leave()
            self.here.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # another process removed the directory since mkdir
                self._fd = os.open(self.here / HELD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                try:
                    fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    continue
                except BlockingIOError:
                    self.leave()
            if time.monotonic() > give_up:
                raise TimeoutError(f"{self.here} is being removed by another process")
            time.sleep(RETRY_S)

    def _is_held(self) -> bool:
        """Return True if the locked file is the one that is in the room now.

        A sweep may have removed the room before this process locked it, or an engine beside it may have removed it.
        """
        if self._fd is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._fd), (self.here / HELD).stat())
        except OSError:
            return False

    def remove(self) -> None:
        """Remove the directory and release the lock. Idempotent."""
        if self._fd is not None:
            shutil.rmtree(self.here, ignore_errors=True)
            self.leave()

    def leave(self) -> None:
        """Release the lock. Idempotent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def sweep(root: Path) -> None:
    """Remove this user's rooms in `root` that no process holds. Log those that cannot be removed."""
    for here in sorted(root.glob(f"{PREFIX}{os.geteuid()}_*")):
        try:
            fd = os.open(here / HELD, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # a process is just creating the room
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(here)
            log.info("Removed %s, which killed engines had left.", here)
        except BlockingIOError:
            pass  # a living engine holds it
        except OSError as error:
            log.warning("Cannot remove %s, which killed engines left: %s.", here, error)
        finally:
            os.close(fd)
