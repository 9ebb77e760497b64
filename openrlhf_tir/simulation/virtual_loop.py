"""An asyncio event loop on a virtual clock, which jumps to the next timer when nothing is ready.

Waiting costs nothing and is exact. The loop has what tasks, futures, timers and `asyncio.timeout` need. It has no
sockets, signals or threads: `run_in_executor` runs the call in place, which takes no virtual time. Timers are tuples on
a heap, which Python compares in C, because a simulation makes millions of them. Timers of the same time run in the
order in which they were set, so that a run depends on its seed alone.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

if TYPE_CHECKING:  # asyncio needs the methods only, and the fields of its own class take three times the memory
    from concurrent.futures import Executor

    _TimerHandle = asyncio.TimerHandle
else:
    _TimerHandle = object

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
log = logging.getLogger(__name__)


class Deadlock(AssertionError):
    """Raised when every task waits and no timer is set, so that nothing can ever happen again."""


class _Handle(_TimerHandle):
    """A callback that will run; see asyncio.TimerHandle."""

    __slots__ = ("_when", "args", "callback", "context")

    def __init__(self, callback: Callable, args: tuple, context: contextvars.Context | None, when: float) -> None:
        self.callback: Callable | None = callback
        self.args = args
        self.context = context
        self._when = when

    def cancel(self) -> None:
        """See asyncio.Handle."""
        self.callback = None

    def cancelled(self) -> bool:
        """See asyncio.Handle."""
        return self.callback is None

    def when(self) -> float:
        """See asyncio.TimerHandle."""
        return self._when


class VirtualLoop(asyncio.AbstractEventLoop):
    """The event loop; its clock starts at 0. `run` at the end of this file is the usual way to use it."""

    def __init__(self) -> None:
        self._now = 0.0
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._numbers = itertools.count()
        """Numbers the timers, so that those of the same time are in the order in which they were set."""
        self._stopping = False
        self._closed = False
        self._running = False
        self._failure: BaseException | None = None
        self.suspended_s = 0.0
        """Seconds for which this process was suspended, as far as it noticed that (waiting/suspension.py)."""

    # --- clock and timers

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def suspend(self, seconds: float, noticed: bool = True) -> None:
        """Let the clock go on while nothing runs, as after a SIGSTOP.

        Args:
            seconds: For how long.
            noticed: True if the process notices it, as the thread in waiting/suspension.py does.
        """
        self._now += seconds
        self.suspended_s += seconds * noticed

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> _Handle:
        """See asyncio.AbstractEventLoop."""
        handle = _Handle(callback, args, context or contextvars.copy_context(), self._now)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> _Handle:
        """See asyncio.AbstractEventLoop.

        A callback that is set without a context runs in the loop's own: a simulation sets millions and needs none.
        """
        handle = _Handle(callback, args, context, when)
        heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> _Handle:
        """See asyncio.AbstractEventLoop."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    # --- running

    def run_forever(self) -> None:
        """See asyncio.AbstractEventLoop.

        Raises:
            Deadlock: Every task waits and no timer is set.
        """
        if self._running or self._closed:
            raise RuntimeError("This loop runs already or is closed.")
        self._running = True
        self._stopping = False
        asyncio._set_running_loop(self)
        try:
            while not self._stopping:
                self._round()
        finally:
            self._running = False
            asyncio._set_running_loop(None)

    def _round(self) -> None:
        """Run what is ready, and then timers until one of them makes something ready."""
        ready = self._ready
        timers = self._timers
        while ready and not self._stopping:
            handle = ready.popleft()
            callback, context = handle.callback, handle.context
            if callback is not None and context is not None:
                context.run(callback, *handle.args)
        while timers and not ready and not self._stopping:
            when, _, handle = heappop(timers)
            callback = handle.callback
            if callback is None:
                continue
            if when > self._now:
                self._now = when
            if handle.context is None:
                callback(*handle.args)
            else:
                handle.context.run(callback, *handle.args)
        if not ready and not self._stopping:
            raise Deadlock("Deadlock: every task waits and no timer is set.")

    def run_until_complete(self, future):
        """See asyncio.AbstractEventLoop."""
        future = asyncio.ensure_future(future, loop=self)
        future.add_done_callback(lambda _: self.stop())
        try:
            self.run_forever()
        except BaseException:
            if future.done() and not future.cancelled():
                future.exception()
            raise
        return future.result()

    def stop(self) -> None:
        """See asyncio.AbstractEventLoop."""
        self._stopping = True

    def is_running(self) -> bool:
        """See asyncio.AbstractEventLoop."""
        return self._running

    def is_closed(self) -> bool:
        """See asyncio.AbstractEventLoop."""
        return self._closed

    def close(self) -> None:
        """See asyncio.AbstractEventLoop."""
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    # --- what tasks and futures need of a loop

    def create_future(self) -> asyncio.Future:
        """See asyncio.AbstractEventLoop."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        """See asyncio.AbstractEventLoop."""
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run the call in place: threads take no virtual time."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def get_debug(self) -> bool:
        """See asyncio.AbstractEventLoop."""
        return False

    def set_debug(self, enabled: bool) -> None:
        """Do nothing: there is no debug mode. asyncio.Runner calls this method."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Log an exception that asyncio could not deliver to anyone."""
        log.error("%s", context.get("message"), exc_info=context.get("exception"))

    default_exception_handler = call_exception_handler

    async def shutdown_asyncgens(self) -> None:
        """Do nothing: no generators are tracked."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: there is no executor."""


def run(coroutine: Coroutine) -> Any:
    """Run a coroutine on a new loop, as asyncio.run does, and return its result.

    Raises:
        Deadlock: Every task waits and no timer is set. Nothing hangs.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)
