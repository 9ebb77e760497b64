"""Keep a run alive whose output nobody reads any more.

`train ... 2>&1 | tee log` and Ctrl-C: the terminal signals `tee` as well, which ends at once. The run goes on for as
long as its checkpoint takes, and every line that it prints then raises BrokenPipeError; a terminal that was closed
raises EIO. Neither may cost the checkpoint, or turn the exit code of a stop into that of a failure.
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


class _Lasting(io.RawIOBase):
    """Writes to a file descriptor; once its reader is gone, everything that is written there is discarded."""

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
            if error.errno not in UNREAD:
                raise
        _discard(self._descriptor)
        return len(data)


class _Unbuffered(io.BufferedWriter):
    """Hands on at once what is written to it, all of it, as PYTHONUNBUFFERED=1 asks for."""

    def write(self, data: Any) -> int:
        count = super().write(data)
        self.flush()
        return count


@contextmanager
def lasting_output() -> Iterator[None]:
    """Within the block, standard output and error may lose their reader. What comes after it may print as well."""
    before = {"stdout": sys.stdout, "stderr": sys.stderr}
    lasting: list[io.TextIOBase] = []
    for name, stream in before.items():
        if not isinstance(stream, io.TextIOWrapper):
            continue  # a test captures it
        try:
            descriptor = stream.fileno()
        except OSError:
            continue  # it is no file
        ours = io.TextIOWrapper(
            _Unbuffered(_Lasting(descriptor)) if stream.write_through else io.BufferedWriter(_Lasting(descriptor)),
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        with suppress(OSError):  # its reader is gone already: its end discards what is left
            stream.flush()
        setattr(sys, name, ours)
        lasting.append(ours)
    try:
        yield
    finally:
        for wrapper in lasting:
            with suppress(OSError):  # a full disk: the streams are put back all the same
                wrapper.flush()
            if _is_unread(wrapper.fileno()):
                _discard(wrapper.fileno())
        for name, stream in before.items():
            setattr(sys, name, stream)


def _is_unread(descriptor: int) -> bool:
    """Return True if the other end of a pipe or terminal was closed."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _discard(descriptor: int) -> None:
    """Send what is written to this descriptor from now on, by whatever library, nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
