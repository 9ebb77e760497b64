"""Report the line at which the import of a user's file is stuck, and interrupt the import if it takes too long.

A file is executed when it is loaded. That may take long: torch and vLLM are imported in a minute on a busy machine, and
a model or a data set may be loaded. So the line is printed every NOTICE_S seconds, and the import is interrupted

    after OWN_S seconds   of CPU time in loops of the file itself
    after END_S seconds   in any case; outside of the main thread only where Python code runs

Only the standard library is imported.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time
from opcode import opname
from types import FrameType, TracebackType
from typing import Any, Self

from .failures import Overrun, line_in

NOTICE_S = 20.0
"""Seconds before the first notice of an import's line, and between two notices."""
OWN_S = 45.0
"""Seconds of CPU time in loops of the file itself after which its import is interrupted."""
END_S = 300.0
"""Seconds after which any import is interrupted."""
LOOK_EVERY_S = 0.5
"""Seconds between two looks at the line that runs."""


class LoadWatch:
    """Watches the import of one file, as a context manager in the thread that imports it."""

    def __init__(self, file: str, setting: str) -> None:
        self.file = file
        self.setting = setting
        self._fault = f"it was not loaded within {END_S:g} s"
        """What an interrupt says."""
        self._lock = threading.Lock()
        """Held for a look, and by the end of the import, so that nothing is interrupted after that."""
        self._over = threading.Event()
        self._before: Any = None

    def __enter__(self) -> Self:
        self._thread = threading.get_ident()
        self._cpu_clock = time.pthread_getcpuclockid(self._thread)
        # Only the main thread can have a signal handler. A handler or timer that other code has set is not replaced.
        self._ends = threading.current_thread() is threading.main_thread() and (
            signal.getsignal(signal.SIGALRM) == signal.SIG_DFL and signal.getitimer(signal.ITIMER_REAL)[0] == 0
        )
        if self._ends:
            self._before = signal.signal(signal.SIGALRM, self._end)
            signal.setitimer(signal.ITIMER_REAL, END_S)
        threading.Thread(target=self._watch, name="load watch", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, Overrun) and not error.args:  # Python has raised it in another thread, without a message
            error.args = (self._fault,)
        try:
            with self._lock:
                self._over.set()
        finally:  # an interrupt may have come in between
            self._over.set()
            if self._ends:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, self._before)

    def _end(self, number: int, frame: FrameType | None) -> None:
        raise Overrun(self._fault)

    def _watch(self) -> None:
        began = time.monotonic()
        notices = 0
        cpu_s: float | None = None
        looped_s = 0.0
        while not self._over.wait(min(LOOK_EVERY_S, NOTICE_S, OWN_S / 4)):
            with self._lock:
                if self._over.is_set():
                    return
                frame = sys._current_frames().get(self._thread)
                before_s = cpu_s
                cpu_s = time.clock_gettime(self._cpu_clock)
                if before_s is not None and _loops_in(frame, self.file):
                    looped_s += cpu_s - before_s
                if looped_s >= OWN_S:
                    self._fault = f"a loop in it took {OWN_S:g} s of CPU time"
                waited_s = time.monotonic() - began
                if looped_s >= OWN_S or (waited_s >= END_S and not self._ends):
                    self._interrupt()
                    return
            line = line_in(frame, self.file)
            if line is not None and waited_s >= NOTICE_S * (notices + 1):
                notices += 1
                print(
                    f"{self.setting}: {self.file}:{line} has not ended after {waited_s:.0f} s: that is executed when"
                    " the file is loaded. Move it into a function if it does not end.",
                    file=sys.stderr,
                    flush=True,
                )

    def _interrupt(self) -> None:
        """Raise Overrun in the thread that imports, by a signal where that is possible."""
        if self._ends:
            signal.pthread_kill(self._thread, signal.SIGALRM)
        else:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(Overrun))


def _loops_in(frame: FrameType | None, file: str) -> bool:
    """Return True if a thread is about to repeat a loop in `file` itself.

    Python lets another thread run behind a call, or where a loop begins again. So a thread that is in C code for long,
    to read a model for instance, is seen at its call, and not here.
    """
    if frame is None or frame.f_code.co_filename != file:
        return False
    return "JUMP_BACKWARD" in opname[frame.f_code.co_code[frame.f_lasti]]
