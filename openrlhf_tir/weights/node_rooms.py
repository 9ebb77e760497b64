"""Node rooms: the directories in a node's own memory in which its engines keep what was pushed, one for each directory
that is pushed to. Each process holds a shared flock on its room's file HELD for as long as it lives, and the kernel
frees it however that ends:

    Room(here).hold()     mkdir, flock(LOCK_SH)
    sweep(root)           rooms that nobody holds, since all of their processes were killed, are removed
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
PREFIX, HELD = "tir_node_", "held"
RETRY_S = 0.05
"""Between two tries while another process removes the room: flock has no deadline of its own."""


class Room:
    def __init__(self, here: Path) -> None:
        self.here = here
        self._fd: int | None = None

    def hold(self, wait_s: float) -> None:
        """The directory is there, and nobody sweeps it from now on. Raises OSError, among them where another process
        removes it for longer than `wait_s`."""
        give_up = time.monotonic() + wait_s
        while not self._is_held():
            self.leave()
            self.here.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # it was removed since
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
        """Whether what we hold is what lies there now: who swept may have removed it before our flock, an engine beside
        us may have given the room back."""
        if self._fd is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._fd), (self.here / HELD).stat())
        except OSError:
            return False

    def leave(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def sweep(root: Path) -> None:
    """Removes our rooms in `root` that no process holds. What cannot be removed stays, and is said."""
    for here in sorted(root.glob(f"{PREFIX}{os.geteuid()}_*")):
        try:
            # one without the file is just being made
            fd = os.open(here / HELD, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(here)
            log.info("%s, which killed engines have left, is removed.", here)
        except BlockingIOError:
            pass  # of engines that live
        except OSError as e:
            log.warning("%s, which killed engines have left, cannot be removed: %s.", here, e)
        finally:
            os.close(fd)
