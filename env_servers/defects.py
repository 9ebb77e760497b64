"""Describe what an environment class of the user did wrong, as signals of a reply.

    code_defect    "file:line" where the class raised, blocked the server, or returned something that is not a reply
    traceback      the traceback from that file on
    error          the error as a sentence

The trainer treats such a reply as a bug of the user's, not as an outage. Environments of this package have no defects:
an exception in one of them is a failure of its server (`env_error`). A service that the user's class calls and that
does not answer is an outage too.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Coroutine
from typing import Any

from pydantic import ValidationError

from openrlhf_tir.protocol import CODE_DEFECT
from openrlhf_tir.user_code import failures
from openrlhf_tir.user_code.failures import Exited, suspended_at, thread_at, traceback_of, user_code_errors
from openrlhf_tir.user_code.failures import Overrun as Overrun  # other files of this package take these from here
from openrlhf_tir.user_code.failures import is_denied as is_denied
from openrlhf_tir.user_code.failures import is_outage as is_outage
from openrlhf_tir.user_code.failures import show as show
from openrlhf_tir.user_code.plugins import location, raised_at, source_file

from .actions import cut, sendable

OURS = "env_servers."
"""Prefix of the modules whose classes belong to this package."""
ERROR_CHARS = 1 << 15
"""Characters kept of an error, and of its traceback. A reply has at most three such texts, and room for them however
JSON writes a character."""


class Defects:
    """What is known about the class that a server serves, and how its errors are described."""

    def __init__(self, factory: Any) -> None:
        """Find the class and the files of the user.

        Args:
            factory: The environment class, or a partial of it. A class of this package that runs tools of the user
                lists their files in its attribute `user_files`.
        """
        cls = getattr(factory, "func", factory)
        self.cls: type | None = None
        self.files: tuple[str, ...] = ()
        """The user's files. A frame of a traceback in one of them is the user's code."""
        if not inspect.isclass(cls):
            return
        user_files = tuple(getattr(cls, "user_files", ()))
        if not user_files and _module_of(cls).startswith(OURS):
            return
        self.cls = cls
        self.files = user_files or tuple(filter(None, [source_file(cls)]))

    def signals(self, error: BaseException, method: str) -> dict[str, Any] | None:
        """Return the signals of a defect of the class; None if the error is not its own doing.

        Args:
            error: The exception that `method` raised.
            method: Name of the method of the class, for an error without a frame in the user's files.
        """
        if self.cls is None or (isinstance(error, Exception) and is_outage(error)):
            return None
        description = described(error)
        at = self._raised_at(error)
        if at is not None:
            traceback = _sendable(traceback_of(error, at.rpartition(":")[0]))
            return {"error": description, CODE_DEFECT: at, "traceback": traceback}
        at = self.where(method)
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            field = ".".join(map(str, first["loc"]))
            description = _sendable(f"{method} gave {field} = {show(first.get('input'))}: {first['msg']}")
        return {"error": description.removeprefix(f"{type(error).__name__}: {at}: "), CODE_DEFECT: at}

    def outage(self, error: BaseException) -> str:
        """Return a description of an error that is no defect, with the user's line that it came through if it did."""
        at = self._raised_at(error)
        return described(error) if at is None else f"{described(error)} (at {at})"

    def where(self, method: str) -> str:
        """Return "file:line" of a method's definition, or the user's file if the method is inherited from us."""
        at = location(getattr(self.cls, method, self.cls))
        if at and (not self.files or at.rpartition(":")[0] in self.files):
            return at
        return self.files[0] if self.files else str(self.cls)

    def waits_at(self, task: asyncio.Task[Any] | None, error: BaseException | None = None) -> str | None:
        """Return "file:line" where the class waits in a task, or waited when it was cancelled; None if unknown.

        Args:
            task: The task that runs the class's method, if it still runs.
            error: The exception of the cancelled method, used when the task has ended.
        """
        if task is not None and not task.done():
            places = [suspended_at(task.get_coro(), file) for file in self.files]
        else:
            places = [self._raised_at(error)] if error is not None else []
        # A plain function runs in a thread, which continues after its caller has stopped waiting for it.
        return next(filter(None, (*places, *map(thread_at, self.files))), None)

    def _raised_at(self, error: BaseException) -> str | None:
        """Return "file:line" of the last frame in one of the user's files; None where no frame is in any."""
        for file in self.files:
            at = raised_at(error, file)
            if at is not None and at.rpartition(":")[0] == file:
                return at
        return None


def described(error: BaseException) -> str:
    """Return "Type: message" of an error of an environment, as a reply can hold it."""
    return _sendable(failures.described(error))


def _sendable(text: str) -> str:
    """Return a text of any exception, cut to ERROR_CHARS, with half of a surrogate pair as an escape."""
    return sendable(cut(text, ERROR_CHARS))


def _module_of(cls: type) -> str:
    """Return the importable name of a class's module: its own name, not `__main__`, for a program that `python -m`
    runs."""
    spec = sys.modules["__main__"].__spec__
    return spec.name if cls.__module__ == "__main__" and spec is not None else cls.__module__


class SelfCancelled(Exception):
    """Raised in place of a CancelledError of user code that nobody has cancelled: something that it awaited was."""


async def contain(call: Coroutine[Any, Any, Any]) -> Any:
    """Await user code. Turn what would end the server, or would be taken for the end of the session, into an ordinary
    error.

    Raises:
        Exited: The code asked the process to exit, or raised something else that is no Exception.
        SelfCancelled: The code raised CancelledError.
    """
    task = asyncio.current_task()
    try:
        return await call
    except asyncio.CancelledError as e:
        if task is not None and task.cancelling():
            raise
        raise SelfCancelled("it awaited something that was cancelled").with_traceback(e.__traceback__) from None
    except user_code_errors() as e:
        if isinstance(e, Exception | Overrun):
            raise
        cause = f"asked the process to exit ({e.code!r})" if isinstance(e, SystemExit) else f"raised {described(e)}"
        raise Exited(f"it {cause}").with_traceback(e.__traceback__) from None
