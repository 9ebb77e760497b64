"""Write behind: a file goes to the disk while it is still being written, so that the fsync at its end has little left
to wait for.

    with write_behind(fd) as behind:
        behind.follow(written) ──> a thread's fdatasync, every STEP_BYTES, one at a time
        behind.end()           ──> what went wrong there is raised here: an fsync after it would not say it again
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

STEP_BYTES = 16 * 2**20


class WriteBehind:
    def __init__(self, fd: int, thread: ThreadPoolExecutor) -> None:
        self.fd, self.thread = fd, thread
        self._begun = 0
        self._syncing: Future[None] | None = None

    def follow(self, written: int) -> None:
        """So many bytes were written. Raises OSError for an earlier part."""
        if written - self._begun < STEP_BYTES or (self._syncing and not self._syncing.done()):
            return
        self.end()
        self._begun, self._syncing = written, self.thread.submit(os.fdatasync, self.fd)

    def end(self) -> None:
        """Nothing is on its way any more. Raises OSError."""
        if self._syncing:
            self._syncing.result()


@contextmanager
def write_behind(fd: int) -> Iterator[WriteBehind]:
    """The file is open for as long as this is."""
    with ThreadPoolExecutor(1, thread_name_prefix="write behind") as thread:
        yield WriteBehind(fd, thread)
