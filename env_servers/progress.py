"""Progress of long work on stderr: a bar on a terminal, one line per tenth elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

WIDTH = 40


class Progress:
    """`update(share)` with a share in [0, 1]; cheap enough to call often."""

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        self._label = label
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._start = time.monotonic()
        self._shown = -1

    def update(self, share: float) -> None:
        step = int(share * (200 if self._live else 10))
        if step == self._shown:
            return
        self._shown = step
        fact = f"{self._label} {share:4.0%}, {time.monotonic() - self._start:.0f} s"
        if self._live:
            full = round(share * WIDTH)
            end = "\n" if share >= 1 else ""
            self._stream.write(f"\r[{'#' * full}{'.' * (WIDTH - full)}] {fact}{end}")
        else:
            self._stream.write(f"{fact}\n")
        self._stream.flush()
