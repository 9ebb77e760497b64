"""LoopWatch: a thread that ends user code which blocks an event loop, by raising `Overrun` at the line that runs.

A call without an `await` cannot be cancelled, and everything else that lives on its loop waits for it: other sessions
of an environment server, other samples of a rollout actor. Standard library only."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType

from .failures import Overrun, running_in

LOOK_EVERY_S = 0.25
"""How often the event loop is asked for a sign of life."""
SHARE = 0.8
"""Share of a call's time for which it may block the event loop: whoever waits for it is to hear where it did."""

AFTER_ONE_S = 0.25
"""What may block the loop in the time after an interrupt: the same step of other sessions is about to block it as well,
and the answers of those that were interrupted are sent only when none does."""
SUSPICION_S = 30.0
"""For how long that is so."""
SEND_S = 0.02
"""For how long the loop is left alone before each call of that time, so that it sends what was answered."""


class LoopWatch:
    """Interrupts what blocks the loop for longer than a running call may, if it runs in one of the user's files.

    In the main thread a signal interrupts `time.sleep` as well; in another thread only code that Python executes.
    """

    def __init__(self, files: Collection[str], always_s: float | None = None) -> None:
        """`always_s`: what may block the loop when no call has said how much time it has; None: anything."""
        self.files = frozenset(files)
        self.always_s = always_s
        self._keys = itertools.count()
        self._allowed: dict[int, float] = {}
        self._alive = 0.0
        self._interrupted = float("-inf")
        """When something was last interrupted, on the monotonic clock."""
        self._stopped = threading.Event()
        self._thread: int | None = None
        self._by_signal = True
        self._turn = asyncio.Lock()

    async def turn(self) -> None:
        """Wait until user code may be called.

        After an interrupt calls are let in one by one, and the loop is left alone in between: the next call may block
        it as well, and without a pause the answer to an interrupted call would be sent only when none is left.
        """
        if self._suspicious():
            async with self._turn:
                await asyncio.sleep(SEND_S)

    @contextmanager
    def allows(self, seconds: float) -> Iterator[None]:
        """While the block runs, which has `seconds`, the loop may be blocked for most of them."""
        key = next(self._keys)
        self._allowed[key] = seconds * SHARE
        try:
            yield
        finally:
            del self._allowed[key]

    def start(self) -> None:
        """Begin to watch the running loop, which has to be this thread's. Nothing happens without files."""
        if not self.files:
            return
        self._thread = threading.get_ident()
        self._by_signal = threading.current_thread() is threading.main_thread()
        self._alive = time.monotonic()
        if self._by_signal:
            signal.signal(signal.SIGUSR1, self._interrupt)
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._watch, args=(loop.call_soon_threadsafe,), name="loop watch", daemon=True).start()

    def stop(self) -> None:
        """End the thread. The signal handler stays, and does nothing."""
        self._stopped.set()
        self._thread = None

    def _watch(self, ask: Callable[[Callable[[], None]], object]) -> None:
        while not self._stopped.wait(LOOK_EVERY_S):
            try:
                ask(self._sign_of_life)
            except RuntimeError:  # the loop is closed
                return
            thread = self._thread
            if thread is None or not self._blocked() or not self._in_files(sys._current_frames().get(thread)):
                continue
            if self._by_signal:
                signal.pthread_kill(thread, signal.SIGUSR1)
            else:
                self._sign_of_life()
                self._interrupted = self._alive
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Overrun))

    def _blocked(self) -> bool:
        allowed = min(self._allowed.copy().values(), default=self.always_s)
        if allowed is not None and self._suspicious():
            allowed = min(allowed, AFTER_ONE_S)
        return allowed is not None and time.monotonic() - self._alive >= allowed

    def _suspicious(self) -> bool:
        return time.monotonic() - self._interrupted < SUSPICION_S

    def _in_files(self, frame: FrameType | None) -> bool:
        return any(running_in(frame, file) for file in self.files)

    def _sign_of_life(self) -> None:
        self._alive = time.monotonic()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal. It may arrive when the call has ended: then nothing is interrupted."""
        if self._thread is not None and self._blocked() and self._in_files(frame):
            blocked_s = time.monotonic() - self._alive
            self._sign_of_life()
            self._interrupted = self._alive
            raise Overrun(f"it blocked its process for {blocked_s:.0f} s without an await, and all that runs beside it")
