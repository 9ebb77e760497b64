"""Failures of user code: whether the code or a service is at fault, at which line, and the traceback for its author.

A reward, filter, protocol, environment class, agent file or estimator of the user's fails in one of three ways:

    it raises, or returns an unusable value     a defect: reported with file and line, never as infrastructure
    it does not end                             a defect: a signal raises `Overrun` in it, at the line that is running
    a service that it calls does not answer     an outage (`is_outage`): infrastructure, never a reward

Only the standard library is imported, because environment servers use this module.
"""

from __future__ import annotations

import asyncio
import errno
import json
import re
import signal
import ssl
import sys
import threading
import traceback
from dataclasses import dataclass
from types import CoroutineType, FrameType
from typing import Any, ClassVar

FILE_ERRORS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Errors of the operating system that come from a wrong path, not from a service that is down."""
ARGUMENT_ERRNOS = frozenset(
    {errno.E2BIG, errno.EINVAL, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOEXEC, errno.ENOTEMPTY}
)
"""Errors of the operating system about its arguments, which a model may have written."""
NETWORK_LIBRARIES = (
    "aiohttp", "grpc", "http", "httpcore", "httpx", "httpx2", "requests", "urllib", "urllib3", "websockets",
)  # fmt: skip
"""Packages whose errors mean that a service did not answer, or refused what it was asked."""
WRONG_URLS = frozenset({"InvalidURL", "NonHttpUrlClientError", "UnsupportedProtocol"})
"""Classes of these packages for a URL that leads nowhere, and that are no ValueError."""
MODEL_CLIENTS = ("anthropic", "litellm", "openai")
"""Packages that ask a language model over HTTP. Their other errors have the cause behind them."""
BUSY_STATUSES = frozenset({408, 409, 429})
"""Refusals of HTTP after which asking again may help: too late, in conflict, too many requests."""
ACCESS_STATUSES = frozenset({401, 402, 407})
"""Refusals of HTTP that are about who asks, whatever is asked: a wrong key, a used-up account, a proxy's log-in."""
SHOWN = 120
"""Characters of a wrong value that a message quotes."""
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""The address of an object in its default repr."""


class Overrun(BaseException):
    """Raised in user code that has used up its time.

    Not an Exception, because the code's own `except Exception` must not hide it.
    """


class Starved(Overrun):
    """Raised in place of an Overrun where the machine had no core for the code: then it is not the code's doing."""


class Exited(Exception):
    """Raised in place of what user code raised and is no Exception, as SystemExit: it would end others' sessions."""


@dataclass(frozen=True)
class UserFunction:
    """A function of the user's by the name in the configuration. Picklable, so a worker process can load and call it.

    Attributes:
        name: "package.module:function", "path/file.py:function", or a registered name.
        user_code: Tells the workers (rewards/workers.py) to interrupt the function where it stands when it uses up its
            time, so that the error has file and line.
    """

    name: str
    user_code: ClassVar[bool] = True

    @property
    def __name__(self) -> str:
        """The name that the workers' messages use: that of the configuration without directories."""
        return self.name.rpartition("/")[2]


def user_code_errors() -> tuple[type[BaseException], ...]:
    """Return the exceptions that are failures of user code which runs here, for an `except` around it.

    They are whatever is being raised (a panic of a library in Rust is no Exception), but for what may come from outside
    of the code. That is a cancellation where an event loop runs, and a KeyboardInterrupt which may be Ctrl-C: Python's
    own handler, if it is installed, raises that in the main thread, in whatever code is running. Workers ignore SIGINT,
    and event loops and servers handle it.
    """
    from_outside: tuple[type[BaseException], ...] = (GeneratorExit,)
    if _event_loop_runs():
        from_outside += (asyncio.CancelledError,)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        from_outside += (KeyboardInterrupt,)
    raised = sys.exception()
    if raised is None or isinstance(raised, from_outside):
        return (Exception,)
    return (Exception, type(raised))


def _event_loop_runs() -> bool:
    """Return True if an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def is_outage(error: BaseException) -> bool:
    """Return True if an error of user code means that a service did not answer, so that waiting may help.

    An answer that its library cannot read counts as none: it is often the error page of a proxy before a service that
    restarts. One that refuses the request (a wrong key, a page that does not exist) is no outage, nor is a URL that
    cannot be read: the user's code or the model's text is at fault.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_outage, error.exceptions))
    if isinstance(error, FILE_ERRORS):
        return False
    packages = _packages(error)
    if packages.isdisjoint(NETWORK_LIBRARIES + MODEL_CLIENTS):
        if isinstance(error, json.JSONDecodeError):
            return _is_of_answer(error)
        return isinstance(error, OSError | TimeoutError) and getattr(error, "errno", None) not in ARGUMENT_ERRNOS
    status = _status(error)
    if status is not None:
        return not 400 <= status < 500 or status in BUSY_STATUSES
    if packages.intersection(MODEL_CLIENTS):
        return error.__cause__ is not None and is_outage(error.__cause__)
    wrong_url = isinstance(error, ValueError) and not isinstance(error, ssl.SSLError | json.JSONDecodeError)
    return not wrong_url and WRONG_URLS.isdisjoint(base.__name__ for base in type(error).__mro__)


def _is_of_answer(error: json.JSONDecodeError) -> bool:
    """Return True if a network library read the text, as httpx does; other texts are the user's or a model's."""
    modules = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(module.partition(".")[0] in NETWORK_LIBRARIES for module in modules)


def is_denied(error: BaseException) -> bool:
    """Return True if a service denies access to user code, whatever it asks: no text of a model can be the cause."""
    asks = not _packages(error).isdisjoint(NETWORK_LIBRARIES + MODEL_CLIENTS)
    return asks and _status(error) in ACCESS_STATUSES


def _packages(error: BaseException) -> set[str]:
    """Return the packages that define an error's class and the exceptions that it extends."""
    return {base.__module__.partition(".")[0] for base in type(error).__mro__ if issubclass(base, Exception)}


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of the answer that an error is about; None if there was no answer."""
    holders = (error, getattr(error, "response", None))  # aiohttp, openai and urllib have it; requests, httpx there
    found = (getattr(holder, name, None) for holder in holders for name in ("status_code", "status", "code"))
    return next((status for status in found if isinstance(status, int) and 100 <= status < 600), None)


def described(error: BaseException) -> str:
    """Return "Type: message" of an error of user code, whose own `__str__` may fail as well."""
    try:
        message = str(error)
    except user_code_errors() as failed:
        message = f"its message cannot be printed: __str__ raised {type(failed).__name__}"
    first = f"; the first is {described(error.exceptions[0])}" if isinstance(error, BaseExceptionGroup) else ""
    return f"{type(error).__name__}: {message}{first}"


def show(value: Any) -> str:
    """Return a value with its type, for a message. Addresses are left out: the same fault has the same message."""
    try:
        text = ADDRESS.sub("", repr(value))
    except user_code_errors():  # a user's own __repr__, or an integer of more digits than Python prints
        text = "a value that cannot be printed"
    return f"{text[:SHOWN]}... ({type(value).__name__})" if len(text) > SHOWN else f"{text} ({type(value).__name__})"


def traceback_of(error: BaseException, file: str | None) -> str:
    """Return an error's traceback from the first frame in the user's `file` on. The frames above are the trainer's."""
    formatted = traceback.TracebackException.from_exception(error)
    first = next((i for i, frame in enumerate(formatted.stack) if frame.filename == file), 0)
    del formatted.stack[:first]
    formatted.__cause__ = None
    formatted.__context__ = None
    return "".join(formatted.format()).rstrip()


def suspended_at(coroutine: Any, file: str | None) -> str | None:
    """Return "file:line" at which a suspended coroutine waits: the innermost line in `file`; None if there is none."""
    place = None
    while isinstance(coroutine, CoroutineType) and coroutine.cr_frame is not None:
        if coroutine.cr_frame.f_code.co_filename == file:
            place = f"{file}:{coroutine.cr_frame.f_lineno}"
        coroutine = coroutine.cr_await
    return place


def thread_at(file: str) -> str | None:
    """Return "file:line" of the innermost line of `file` that another thread executes.

    None if no thread does, or if several do, since nothing says for which of them the caller waits.
    """
    frames = [frame for thread, frame in sys._current_frames().items() if thread != threading.get_ident()]
    lines = [line for frame in frames if (line := line_in(frame, file)) is not None]
    return f"{file}:{lines[0]}" if len(lines) == 1 else None


def line_in(frame: FrameType | None, file: str) -> int | None:
    """Return the innermost line of `file` that a thread's stack contains, from `frame` on; None if it contains none."""
    while frame is not None:
        if frame.f_code.co_filename == file:
            return frame.f_lineno
        frame = frame.f_back
    return None
