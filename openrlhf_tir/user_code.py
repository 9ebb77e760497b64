"""User code that failed: whose fault it is, where, and the traceback that its author can read. Standard library only.

A reward, filter, protocol, environment class, agent file or estimator of the user's is wrong in one of three ways:

    it raises, or returns what cannot be used   a defect: file and line, never counted as infrastructure
    it does not end                             a defect: a signal raises `Overrun` inside of it, at the line that runs
    a service that it asks does not answer      an outage (`is_outage`): infrastructure, which is tried again
"""

from __future__ import annotations

import errno
import traceback
from types import CoroutineType, FrameType
from typing import Any

FILE_ERRORS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Errors of the operating system that a wrong path causes, and no service that is down."""
ARGUMENT_ERRNOS = frozenset(
    {errno.E2BIG, errno.EINVAL, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOEXEC, errno.ENOTEMPTY}
)
"""Errors of the operating system about what was given to it, which a model may have written."""
NETWORK_LIBRARIES = ("aiohttp", "grpc", "httpcore", "httpx", "requests", "urllib3", "websockets")
"""Packages whose errors say that something else did not answer."""


class Overrun(BaseException):
    """A call of user code has used up its time. No Exception: the code's own `except Exception` must not hide it."""


class Exited(Exception):
    """User code asked the process to exit. A server that did so would take the sessions of others along."""


def is_outage(error: BaseException) -> bool:
    """Return True if an error of user code says that a service did not answer, which waiting may mend."""
    if isinstance(error, FILE_ERRORS):
        return False
    if isinstance(error, OSError | TimeoutError):
        return getattr(error, "errno", None) not in ARGUMENT_ERRNOS
    return any(
        base.__module__.partition(".")[0] in NETWORK_LIBRARIES and issubclass(base, Exception)
        for base in type(error).__mro__
    )


def traceback_of(error: BaseException, file: str | None) -> str:
    """Return the traceback of an error from the first frame in the user's `file` on: what is above it is ours."""
    formatted = traceback.TracebackException.from_exception(error)
    first = next((i for i, frame in enumerate(formatted.stack) if frame.filename == file), 0)
    del formatted.stack[:first]
    formatted.__cause__ = None
    formatted.__context__ = None
    return "".join(formatted.format()).rstrip()


def suspended_at(coroutine: Any, file: str | None) -> str | None:
    """Return "file:line" where a suspended coroutine waits, the last such line in `file`; None if none is in it."""
    place = None
    while isinstance(coroutine, CoroutineType) and coroutine.cr_frame is not None:
        if coroutine.cr_frame.f_code.co_filename == file:
            place = f"{file}:{coroutine.cr_frame.f_lineno}"
        coroutine = coroutine.cr_await
    return place


def running_in(frame: FrameType | None, file: str | None) -> bool:
    """Return True if `frame`, or a frame that called it, is of `file`."""
    while frame is not None:
        if frame.f_code.co_filename == file:
            return True
        frame = frame.f_back
    return False
