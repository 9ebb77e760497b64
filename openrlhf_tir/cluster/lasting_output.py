"""Keep a run alive whose output nobody reads any more.

`train ... 2>&1 | tee log` and Ctrl-C: the terminal signals `tee` too, which ends at once. The run continues as long as
its checkpoint takes, and every line that it prints then raises BrokenPipeError; a closed terminal raises EIO. Neither
may cost the checkpoint, or turn the exit code of a stop into that of a failure. A log on a full disk loses lines, and
the run goes on.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

UNREAD = (errno.EPIPE, errno.EIO)
"""Errors that mean that nobody reads the output any more."""

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a full disk, which may have room for later lines."""


class _Lasting(io.RawIOBase):
    """Writes to a file descriptor. What a full disk does not take is lost, and everything once the reader is gone."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        try:
            return os.write(self._descriptor, data)
        except OSError as error:
            if error.errno not in UNREAD + FULL:
                raise
            if error.errno in UNREAD:
                _discard(self._descriptor)
        return len(data)


class _Unbuffered(io.BufferedWriter):
    """Passes on at once everything that is written to it, as PYTHONUNBUFFERED=1 requires."""

    def write(self, data: Any) -> int:
        count = super().write(data)
        self.flush()
        return count


@contextmanager
def lasting_output() -> Iterator[None]:
    """Allow standard output and error to lose their reader within the block. Code after the block may print too."""
    streams = {"stdout": sys.stdout, "stderr": sys.stderr}
    lasting: list[io.TextIOBase] = []
    for name, stream in streams.items():
        if not isinstance(stream, io.TextIOWrapper):
            continue  # a test captures it
        try:
            descriptor = stream.fileno()
        except OSError:
            continue  # it is not a file
        wrapper = io.TextIOWrapper(
            _Unbuffered(_Lasting(descriptor)) if stream.write_through else io.BufferedWriter(_Lasting(descriptor)),
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        with suppress(OSError):  # Its reader is gone already. Closing it discards what is left.
            stream.flush()
        setattr(sys, name, wrapper)
        lasting.append(wrapper)
    try:
        yield
    finally:
        for replaced in lasting:
            replaced.flush()
            if _is_unread(replaced.fileno()):
                _discard(replaced.fileno())
        for name, stream in streams.items():
            setattr(sys, name, stream)


def _is_unread(descriptor: int) -> bool:
    """Return True if the other end of a pipe or terminal was closed."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _discard(descriptor: int) -> None:
    """Discard everything that any library writes to this descriptor from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
