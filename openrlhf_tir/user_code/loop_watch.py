"""A thread that interrupts user code which blocks an event loop, by raising `Overrun` at the line that is running.

A call without an `await` cannot be cancelled, and everything else on its event loop waits for it: other sessions of an
environment server, other samples of a rollout actor. Only the standard library is imported, because environment servers
use this module.
"""

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

from .failures import Overrun, line_in

LOOK_EVERY_S = 0.25
"""Seconds between two checks whether the event loop responds."""
SHARE = 0.8
"""Share of a call's time for which it may block the event loop. It is below 1 so that the caller, who waits for the
whole time, is told at which line it blocked."""

AFTER_INTERRUPT_S = 0.25
"""Seconds for which a call may block the loop for a while after an interrupt. The same step of other sessions is likely
to block it as well, and replies to interrupted calls are sent only while nothing blocks it."""
SUSPICION_S = 30.0
"""Seconds after an interrupt for which AFTER_INTERRUPT_S applies."""
SEND_S = 0.02
"""Pause before each call in that time, in which the loop sends replies."""


class LoopWatch:
    """Interrupts code in the user's files that blocks the event loop for longer than the running calls may.

    In the main thread a signal interrupts `time.sleep` as well. In another thread only Python code can be interrupted.
    """

    def __init__(self, files: Collection[str], always_s: float | None = None) -> None:
        """Create a watch that is not started.

        Args:
            files: The user's files.
            always_s: Seconds for which the loop may be blocked while no call is running; None for no limit.
        """
        self.files = frozenset(files)
        self.always_s = always_s
        self._keys = itertools.count()
        self._allowed: dict[int, float] = {}
        self._alive = 0.0
        """Monotonic time at which the loop last responded, in seconds."""
        self._interrupted = float("-inf")
        """Monotonic time of the last interrupt, in seconds."""
        self._stopped = threading.Event()
        self._thread: int | None = None
        self._by_signal = True
        self._turn = asyncio.Lock()

    async def turn(self) -> None:
        """Wait until user code may be called.

        For a while after an interrupt, calls start one by one with a pause between them. The next call may block the
        loop as well, and without a pause the reply to an interrupted call would be sent only after the last one.
        """
        if self._suspicious():
            async with self._turn:
                await asyncio.sleep(SEND_S)

    @contextmanager
    def allows(self, seconds: float) -> Iterator[None]:
        """Allow the block, a call with `seconds` of time, to block the loop for most of them."""
        key = next(self._keys)
        self._allowed[key] = seconds * SHARE
        try:
            yield
        finally:
            del self._allowed[key]

    def start(self) -> None:
        """Begin to watch the event loop that runs in this thread. Does nothing without files."""
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
        """End the thread. The signal handler stays installed and does nothing."""
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
            allowed = min(allowed, AFTER_INTERRUPT_S)
        return allowed is not None and time.monotonic() - self._alive >= allowed

    def _suspicious(self) -> bool:
        return time.monotonic() - self._interrupted < SUSPICION_S

    def _in_files(self, frame: FrameType | None) -> bool:
        return any(line_in(frame, file) is not None for file in self.files)

    def _sign_of_life(self) -> None:
        self._alive = time.monotonic()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal. If it arrives after the call has ended, nothing is interrupted."""
        if self._thread is not None and self._blocked() and self._in_files(frame):
            blocked_s = time.monotonic() - self._alive
            self._sign_of_life()
            self._interrupted = self._alive
            raise Overrun(f"it blocked its process for {blocked_s:.0f} s without an await, and all that runs beside it")
