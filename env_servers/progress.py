"""Show the progress of long work on stderr: a bar on a terminal, one line per tenth elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

WIDTH = 40
"""Characters of the bar."""


class Progress:
    """A progress display. `update` is cheap enough to be called often."""

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        self._label = label
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._start = time.monotonic()
        self._last_step = -1

    def update(self, share: float) -> None:
        """Show that `share` of the work is done, a number from 0 to 1. Writes only if the display changes."""
        step = int(share * (200 if self._live else 10))
        if step == self._last_step:
            return
        self._last_step = step
        text = f"{self._label} {share:4.0%}, {time.monotonic() - self._start:.0f} s"
        if self._live:
            filled = round(share * WIDTH)
            end = "\n" if share >= 1 else ""
            self._stream.write(f"\r[{'#' * filled}{'.' * (WIDTH - filled)}] {text}{end}")
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()
