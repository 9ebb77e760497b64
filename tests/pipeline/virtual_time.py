"""A virtual clock: an event loop whose time jumps to the next timer when nothing is ready. Sleeping costs nothing and is exact."""

from __future__ import annotations

import asyncio
import selectors


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout=None):
        if timeout:
            self.now += timeout
            timeout = 0
        elif timeout is None:
            raise AssertionError("deadlock: every task waits and no timer is set")
        return super().select(timeout)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def run_in_executor(self, executor, func, *args):
        """Threads take no virtual time."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as e:
            future.set_exception(e)
        return future


def run(coroutine):
    """asyncio.run on the virtual clock. A deadlock raises at once instead of hanging."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)
