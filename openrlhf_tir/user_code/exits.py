"""Have calls of `os._exit` and `os.abort` in user code raise an error with file and line instead of ending the process.

Such a call ends a process without a traceback: the others that it serves (sessions of an environment, rewards of a
batch) are lost with it, and nobody learns at which line. A process that user code has forked may end itself.
Only the standard library is imported, because environment servers use this module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from .failures import Exited

OURS = ("openrlhf_tir", "env_servers", "miniatures")
"""Packages of this project."""
_modules: set[str] = set()
"""Names of the user's modules that are loaded in this process."""
_owner: list[int] = []
"""The process whose functions are replaced; a forked one inherits the list and is not it."""


def watch_exits(module: str) -> None:
    """Call before a module of the user's is executed in this process, so that it finds the replaced functions.

    Args:
        module: The module's name in sys.modules.
    """
    _modules.add(module)
    if os.getpid() in _owner:
        return
    _owner[:] = [os.getpid()]
    for name in ("_exit", "abort"):
        setattr(os, name, partial(_ended, name, _original(getattr(os, name))))


def _original(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the operating system's own function, also in a fork of a process that had replaced it."""
    return function.args[1] if isinstance(function, partial) and function.func is _ended else function


def _ended(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    if os.getpid() in _owner and _in_user_code(sys._getframe(1)):
        raise Exited(f"it called os.{name}({', '.join(map(repr, args))})")
    function(*args, **kwargs)


def _in_user_code(frame: FrameType | None) -> bool:
    """Return True if the user's code makes the call, directly or by way of a library.

    A signal handler of ours may have interrupted the user's code: it is above in the stack, and ends the process.
    """
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name in _modules:
            return True
        if name.partition(".")[0] in OURS:
            return False
        frame = frame.f_back
    return False
