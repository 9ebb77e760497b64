"""Report the line at which the import of a user's file is stuck, and interrupt the import if it takes too long.

A file is executed when it is loaded. That may take long: torch and vLLM are imported in a minute on a busy machine, and
a model or a data set may be loaded. So the line is printed every NOTICE_S seconds, and the import is interrupted

    after OWN_S seconds   in which only lines of the file itself ran, and the standard library for them: a loop
    after END_S seconds   in any case

Only the standard library is imported.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

from .failures import Overrun

NOTICE_S = 20.0
"""Seconds before the first notice of an import's line, and between two notices."""
OWN_S = 45.0
"""Seconds after which an import is interrupted that imports nothing and calls no installed package meanwhile."""
END_S = 300.0
"""Seconds after which any import is interrupted."""
LOOK_EVERY_S = 0.5
"""Seconds between two looks at the line that runs."""
ELSEWHERE = ("<frozen importlib", "site-packages", "dist-packages")
"""What the file name of a frame contains that imports a module, or belongs to an installed package."""


class LoadWatch:
    """Watches the import of one file, as a context manager in the thread that imports it."""

    def __init__(
        self,
        file: str,
        setting: str,
        notice_s: float | None = None,
        end_s: float | None = None,
        own_s: float | None = None,
    ) -> None:
        self.file = file
        self.setting = setting
        self.notice_s = NOTICE_S if notice_s is None else notice_s
        self.end_s = END_S if end_s is None else end_s
        self.own_s = OWN_S if own_s is None else own_s
        self._limit_s = self.end_s
        """The limit that an interrupt names."""
        self._over = threading.Event()
        self._before: Any = None

    def __enter__(self) -> Self:
        self._thread = threading.get_ident()
        # Only the main thread can have a signal handler. A handler or timer that other code has set is not replaced.
        self._ends = threading.current_thread() is threading.main_thread() and (
            signal.getsignal(signal.SIGALRM) == signal.SIG_DFL and signal.getitimer(signal.ITIMER_REAL)[0] == 0
        )
        if self._ends:
            self._before = signal.signal(signal.SIGALRM, self._end)
            signal.setitimer(signal.ITIMER_REAL, self.end_s)
        threading.Thread(target=self._watch, name="load watch", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        if self._ends:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)

    def _end(self, number: int, frame: FrameType | None) -> None:
        raise Overrun(f"it was not loaded within {self._limit_s:g} s")

    def _watch(self) -> None:
        began = own_since = time.monotonic()
        told = 0
        while not self._over.wait(min(LOOK_EVERY_S, self.notice_s, self.own_s / 4)):
            now = time.monotonic()
            line, is_own = _line_in(sys._current_frames().get(self._thread), self.file)
            if not is_own:
                own_since = now
            if now - own_since >= self.own_s:
                self._interrupt()
                return
            if line is not None and now - began >= self.notice_s * (told + 1):
                told += 1
                print(
                    f"{self.setting}: {self.file}:{line} has not ended after {now - began:.0f} s: that is executed when"
                    " the file is loaded. Move it into a function if it does not end.",
                    file=sys.stderr,
                    flush=True,
                )

    def _interrupt(self) -> None:
        """Raise Overrun in the thread that imports, by a signal where that is possible: it ends a sleep as well."""
        self._limit_s = self.own_s
        if self._ends:
            signal.pthread_kill(self._thread, signal.SIGALRM)
        else:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(Overrun))


def _line_in(frame: FrameType | None, file: str) -> tuple[int | None, bool]:
    """Return the innermost line of `file` that a thread's stack contains, and whether its own code runs.

    It does not while another module is imported, or a function of an installed package runs, which may load a model.
    """
    is_own = True
    while frame is not None:
        name = frame.f_code.co_filename
        if name == file:
            return frame.f_lineno, is_own
        is_own = is_own and not any(part in name for part in ELSEWHERE)
        frame = frame.f_back
    return None, False
