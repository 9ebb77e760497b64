"""Flush a file to the disk while it is still being written, so that the fsync at its end has little left to do.

with write_behind(fd) as behind:
    behind.follow(written) ──> every STEP_BYTES: fdatasync in a thread, one at a time
    behind.end()           ──> raises what failed in the thread; a later fsync would not report it again
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

STEP_BYTES = 16 * 2**20


class WriteBehind:
    """Flushes one open file. Created by `write_behind`."""

    def __init__(self, fd: int, thread: ThreadPoolExecutor) -> None:
        self.fd = fd
        self.thread = thread
        self._flushed = 0
        """Bytes that the last flush covers, finished or not."""
        self._syncing: Future[None] | None = None

    def follow(self, written: int) -> None:
        """Start a flush if none is running and enough was written since the last one.

        Args:
            written: Bytes written to the file so far.

        Raises:
            OSError: An earlier flush failed.
        """
        if written - self._flushed < STEP_BYTES or (self._syncing and not self._syncing.done()):
            return
        self.end()
        self._flushed = written
        self._syncing = self.thread.submit(os.fdatasync, self.fd)

    def end(self) -> None:
        """Wait for the running flush. Raises OSError if it failed."""
        if self._syncing:
            self._syncing.result()


@contextmanager
def write_behind(fd: int) -> Iterator[WriteBehind]:
    """Create a `WriteBehind` for a file, which must stay open until the block ends."""
    with ThreadPoolExecutor(1, thread_name_prefix="write behind") as thread:
        yield WriteBehind(fd, thread)
