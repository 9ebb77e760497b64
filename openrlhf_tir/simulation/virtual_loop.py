"""VirtualLoop: an asyncio event loop whose clock jumps to the next timer when nothing is ready. Waiting costs nothing
and is exact.

Only what tasks, futures, timers and `asyncio.timeout` need; no sockets, signals or threads (`run_in_executor` runs in
place and takes no virtual time). Timers are tuples on a heap, compared in C, since a simulation makes millions. Ties
run in the order in which they were set, so a run depends on its seed alone.
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

if TYPE_CHECKING:  # asyncio asks for the methods only, and the real one's fields are three times the memory
    from concurrent.futures import Executor

    _TimerHandle = asyncio.TimerHandle
else:
    _TimerHandle = object

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
log = logging.getLogger(__name__)


class Deadlock(AssertionError):
    """Every task waits and no timer is set: nothing can ever happen again."""


class _Handle(_TimerHandle):
    """What call_soon and call_at return."""

    __slots__ = ("_when", "args", "callback", "context")

    def __init__(self, callback: Callable, args: tuple, context: contextvars.Context | None, when: float) -> None:
        self.callback: Callable | None = callback
        self.args, self.context, self._when = args, context, when

    def cancel(self) -> None:
        self.callback = None

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self._when


class VirtualLoop(asyncio.AbstractEventLoop):
    def __init__(self) -> None:
        self._now = 0.0
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._numbers = itertools.count()
        self._stopping = self._closed = self._running = False
        self._failure: BaseException | None = None
        self.suspended_s = 0.0
        """Seconds of the clock in which this process was suspended, as far as it noticed: see suspension.py."""

    # --- clock and timers

    def time(self) -> float:
        return self._now

    def suspend(self, seconds: float, noticed: bool = True) -> None:
        """Let the clock go on while nothing runs, as SIGSTOP does. `noticed`: by the thread that suspension.py has."""
        self._now += seconds
        self.suspended_s += seconds * noticed

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> _Handle:
        handle = _Handle(callback, args, context or contextvars.copy_context(), self._now)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> _Handle:
        """A `callback` that is set without a context runs in the loop's own: simulations set millions and use none."""
        handle = _Handle(callback, args, context, when)
        heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> _Handle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    # --- running

    def run_forever(self) -> None:
        if self._running or self._closed:
            raise RuntimeError("This loop runs already or is closed.")
        self._running, self._stopping = True, False
        asyncio._set_running_loop(self)
        try:
            while not self._stopping:
                self._round()
        finally:
            self._running = False
            asyncio._set_running_loop(None)

    def _round(self) -> None:
        """What is ready, and then timers, until one makes something ready."""
        ready, timers = self._ready, self._timers
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
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    # --- what tasks and futures ask of a loop

    def create_future(self) -> asyncio.Future:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Runs the call in place: threads take no virtual time."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as e:
            future.set_exception(e)
        return future

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """asyncio.Runner calls it; there is no debug mode."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What asyncio could not deliver to anyone."""
        log.error("%s", context.get("message"), exc_info=context.get("exception"))

    default_exception_handler = call_exception_handler

    async def shutdown_asyncgens(self) -> None:
        """Does nothing: no generators are tracked."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Does nothing: there is no executor."""


def run(coroutine: Coroutine) -> Any:
    """asyncio.run on the virtual clock. A deadlock raises at once instead of hanging."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)
