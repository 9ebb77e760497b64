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

from openrlhf_tir.plugins import location, raised_at, source_file
from openrlhf_tir.user_code import Exited, is_outage, suspended_at, traceback_of

OURS = "env_servers."
"""Classes of modules below it are this package's."""
SHOWN = 120
"""Characters of a wrong value that a message shows."""
CODE_DEFECT = "code_defect"


class Defects:
    """What is known of the class that a server serves. `cls`: the class, or what makes it."""

    def __init__(self, factory: Any) -> None:
        cls = getattr(factory, "func", factory)
        own = inspect.isclass(cls) and not _module_of(cls).startswith(OURS)
        self.cls = cls if own else None
        self.file = source_file(cls) if own else None

    def signals(self, error: BaseException, method: str) -> dict[str, Any] | None:
        """Return the signals of a defect of the class; None if the error is not its own doing."""
        if self.cls is None or (isinstance(error, Exception) and is_outage(error)):
            return None
        words = f"{type(error).__name__}: {error}"
        at = raised_at(error, self.file)
        if at is not None and at.rpartition(":")[0] == self.file:
            return {"error": words, CODE_DEFECT: at, "traceback": traceback_of(error, self.file)}
        at = self.where(method)
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            field = ".".join(map(str, first["loc"]))
            given = repr(first.get("input"))[:SHOWN]
            words = f"{method} gave {field} = {given}: {first['msg']}"
        return {"error": words.removeprefix(f"{type(error).__name__}: {at}: "), CODE_DEFECT: at}

    def where(self, method: str) -> str:
        """Return "file:line" of a method's definition."""
        return location(getattr(self.cls, method, self.cls)) or str(self.file)

    def waits_at(self, task: asyncio.Task[Any] | None, error: BaseException | None = None) -> str | None:
        """Return "file:line" where the class waits in a task, or waited when it was cancelled."""
        if self.file is None:
            return None
        if task is not None and not task.done():
            return suspended_at(task.get_coro(), self.file)
        at = raised_at(error, self.file) if error is not None else None
        return at if at and at.rpartition(":")[0] == self.file else None


def _module_of(cls: type) -> str:
    """Return the name of a class's module, as it is imported: of a program that `python -m` runs, not `__main__`."""
    spec = sys.modules["__main__"].__spec__
    return spec.name if cls.__module__ == "__main__" and spec is not None else cls.__module__


async def without_exit(call: Coroutine[Any, Any, Any]) -> Any:
    """Await user code; a request to exit the process becomes an ordinary error of it."""
    try:
        return await call
    except SystemExit as e:
        raise Exited(f"it asked the process to exit ({e.code!r})").with_traceback(e.__traceback__) from None
