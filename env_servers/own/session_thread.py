"""A thread of one session: the methods of a user's object all run in the same one.

What an object opens in its thread may be bound to it: `sqlite3` refuses a connection of another thread.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

from env_servers.admission import CapacityFull
from openrlhf_tir.waiting.daemon_threads import complete


class SessionThread(Executor):
    """Runs calls one after another in a thread that starts with the first of them.

    The thread is a daemon: a call that never returns does not keep the server from ending.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: Future[Any] | None = None

    @property
    def started(self) -> bool:
        """True once a call was queued."""
        return self._thread is not None

    @property
    def busy(self) -> bool:
        """True while the last call runs, which may have been given up long ago."""
        return self._last is not None and not self._last.done()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a call. Raises CapacityFull if the system has no room for another thread."""
        if self._thread is None:
            thread = threading.Thread(target=_work, args=(self._calls,), name="session", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # a limit of the system or of the container
                raise CapacityFull("the system starts no more threads", retry_after_s=1) from None
            self._thread = thread
        future: Future[Any] = Future()
        self._last = future
        self._calls.put(partial(complete, future, partial(fn, *args, **kwargs)))
        return future

    def end(self) -> None:
        """End the thread behind the calls that are queued."""
        self._calls.put(None)


def _work(calls: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # it holds the session's object, which would live as long as the thread waits
