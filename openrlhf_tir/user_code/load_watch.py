"""Report the line at which the import of a user's file is stuck, and interrupt the import if it takes too long.

A file is executed when it is loaded. That may take long (torch and vLLM are imported in a minute on a busy machine), so
it is not interrupted at once: the line is printed every NOTICE_S seconds, and the import is interrupted after END_S
seconds if a signal can do that. Only the standard library is imported.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from .failures import Overrun

NOTICE_S = 20.0
"""Seconds before the first notice of an import's line, and between two notices."""
END_S = 300.0
"""Seconds after which an import is interrupted."""


class LoadWatch:
    """Watches the import of one file, as a context manager in the thread that imports it."""

    def __init__(self, file: str, setting: str, notice_s: float | None = None, end_s: float | None = None) -> None:
        self.file = file
        self.setting = setting
        self.notice_s = NOTICE_S if notice_s is None else notice_s
        self.end_s = END_S if end_s is None else end_s
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
        raise Overrun(f"it was not loaded within {self.end_s:g} s")

    def _watch(self) -> None:
        waited_s = 0.0
        while not self._over.wait(self.notice_s):
            waited_s += self.notice_s
            line = _line_in(sys._current_frames().get(self._thread), self.file)
            if line is not None:
                print(
                    f"{self.setting}: {self.file}:{line} has not ended after {waited_s:.0f} s: that is executed when"
                    " the file is loaded. Move it into a function if it does not end.",
                    file=sys.stderr,
                    flush=True,
                )


def _line_in(frame: FrameType | None, file: str) -> int | None:
    """Return the innermost line of `file` that a thread's stack contains; None if it contains none."""
    while frame is not None:
        if frame.f_code.co_filename == file:
            return frame.f_lineno
        frame = frame.f_back
    return None
