"""Defects: what an environment class of the user's did wrong, as signals of a reply that are no outage to a trainer.

    code_defect    "file:line" where the class raised, blocked the server, or returned what is no reply
    traceback      the traceback from that file on
    error          the error in words

The environments of this package have none: what one of them raises is its server's failure (`env_error`). Neither is a
service that the class asks and that does not answer."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Coroutine
from typing import Any

from pydantic import ValidationError

from openrlhf_tir.protocol import CODE_DEFECT
from openrlhf_tir.user_code.failures import Exited, suspended_at, thread_at, traceback_of, user_code_errors
from openrlhf_tir.user_code.failures import described as described  # other files of this package take these from here
from openrlhf_tir.user_code.failures import is_outage as is_outage
from openrlhf_tir.user_code.plugins import location, raised_at, source_file

OURS = "env_servers."
"""Classes of modules below it are this package's."""
SHOWN = 120
"""Characters of a wrong value that a message shows."""


class Defects:
    """What is known of the class that a server serves."""

    def __init__(self, factory: Any) -> None:
        """`factory`: the class, or a partial of it. A class of ours that holds tools of the user's says in which files
        they are (`user_files`)."""
        cls = getattr(factory, "func", factory)
        self.cls: type | None = None
        self.files: tuple[str, ...] = ()
        """The user's files, in which a frame of a traceback is the user's."""
        if not inspect.isclass(cls):
            return
        user_files = tuple(getattr(cls, "user_files", ()))
        if not user_files and _module_of(cls).startswith(OURS):
            return
        self.cls = cls
        self.files = user_files or tuple(filter(None, [source_file(cls)]))

    def signals(self, error: BaseException, method: str) -> dict[str, Any] | None:
        """Return the signals of a defect of the class; None if the error is not its own doing."""
        if self.cls is None or (isinstance(error, Exception) and is_outage(error)):
            return None
        words = described(error)
        at = self._raised_at(error)
        if at is not None:
            return {"error": words, CODE_DEFECT: at, "traceback": traceback_of(error, at.rpartition(":")[0])}
        at = self.where(method)
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            field = ".".join(map(str, first["loc"]))
            given = repr(first.get("input"))[:SHOWN]
            words = f"{method} gave {field} = {given}: {first['msg']}"
        return {"error": words.removeprefix(f"{type(error).__name__}: {at}: "), CODE_DEFECT: at}

    def where(self, method: str) -> str:
        """Return "file:line" of a method's definition, or the user's file where the method is ours."""
        at = location(getattr(self.cls, method, self.cls))
        in_user_file = at is not None and at.rpartition(":")[0] in self.files
        return at if at and (in_user_file or not self.files) else self.files[0] if self.files else str(self.cls)

    def waits_at(self, task: asyncio.Task[Any] | None, error: BaseException | None = None) -> str | None:
        """Return "file:line" where the class waits in a task, or waited when it was cancelled."""
        if task is not None and not task.done():
            places = [suspended_at(task.get_coro(), file) for file in self.files]
        else:
            places = [self._raised_at(error)] if error is not None else []
        # A function that is no coroutine runs in a thread, which goes on when nobody waits for it any more.
        return next(filter(None, (*places, *map(thread_at, self.files))), None)

    def _raised_at(self, error: BaseException) -> str | None:
        """Return "file:line" of the last frame in one of the user's files; None where no frame is in any."""
        for file in self.files:
            at = raised_at(error, file)
            if at is not None and at.rpartition(":")[0] == file:
                return at
        return None


def _module_of(cls: type) -> str:
    """Return the name of a class's module, as it is imported: of a program that `python -m` runs, not `__main__`."""
    spec = sys.modules["__main__"].__spec__
    return spec.name if cls.__module__ == "__main__" and spec is not None else cls.__module__


async def without_exit(call: Coroutine[Any, Any, Any]) -> Any:
    """Await user code. Turn what would end the process, an exit or a KeyboardInterrupt, into an ordinary error."""
    try:
        return await call
    except user_code_errors() as e:
        if not isinstance(e, SystemExit | KeyboardInterrupt):
            raise
        cause = f"asked the process to exit ({e.code!r})" if isinstance(e, SystemExit) else "raised KeyboardInterrupt"
        raise Exited(f"it {cause}").with_traceback(e.__traceback__) from None
