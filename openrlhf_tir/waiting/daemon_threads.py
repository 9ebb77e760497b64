"""Calls in threads that a process can leave behind: a disk that hangs must not keep it from ending."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def complete(future: Future[T], call: Callable[[], T]) -> None:
    """Run a call in this thread and give its result, or what it raises, to its future. A cancelled call is not run."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except StopIteration as error:  # asyncio hands it to no awaiter, who would wait for ever
        future.set_exception(RuntimeError("the call raised StopIteration").with_traceback(error.__traceback__))
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


class _DaemonThreads(Executor):
    """Runs each call in a daemon thread of its own. The threads of asyncio.to_thread are waited for at the exit."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        call = partial(fn, *args, **kwargs)
        name = getattr(fn, "__name__", "call")
        threading.Thread(target=complete, args=(future, call), name=name, daemon=True).start()
        return future


def in_daemon_thread(function: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
    """Do what asyncio.to_thread does, in a thread that does not keep the process from ending."""
    return asyncio.get_running_loop().run_in_executor(_DaemonThreads(), function, *args)
