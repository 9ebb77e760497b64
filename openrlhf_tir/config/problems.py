"""Problems: every mistake of a command, told at once instead of one per run.

    with problems.caught():        a ConfigError, DataError or Unavailable becomes a line, and the next check still runs
        check_names(cfg)
    problems.raise_any()

A check that runs on a configuration from which bad values were left out may complain about what replaced them. Lines
that name such a key are dropped: they would send the reader to a value that is not there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from ..errors import ConfigError, DataError, TirError, Unavailable
from .paths import shorten

MOST = 60
"""Lines that are shown; a binary file taken for a recipe could have thousands."""


class Problems:
    def __init__(self) -> None:
        self._lines: dict[str, type[TirError]] = {}
        self._left_out: list[re.Pattern[str]] = []

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, lines: str | Iterable[str], kind: type[TirError] = ConfigError) -> None:
        """Each line is fact, value and remedy. One that was added before, or is of a key that was left out, is not."""
        for line in lines.splitlines() if isinstance(lines, str) else lines:
            if line.strip() and not any(key.search(line) for key in self._left_out):
                self._lines.setdefault(shorten(line, 1500), kind)

    def leave_out(self, key: str) -> None:
        """The value of `key` (or of the section `key.`) is bad: replaced by its default. Say why before, with `add`."""
        self._left_out.append(re.compile(rf"(?<![\w.]){re.escape(key)}" + ("" if key.endswith(".") else r"(?![\w])")))

    @contextmanager
    def caught(self, said: Callable[[str], str] = str) -> Iterator[None]:
        """`said` makes of a line of an error in the body what is told."""
        try:
            yield
        except (ConfigError, DataError, Unavailable) as e:
            self.add(map(said, str(e).splitlines()), type(e))

    @property
    def lines(self) -> list[str]:
        """The mistakes, one each; after MOST of them a line that says how many more there are."""
        lines = [*self._lines]
        if len(lines) > MOST:
            lines[MOST:] = [f"... and {len(lines) - MOST} more. Correct these first."]
        return lines

    def raise_any(self) -> None:
        """Raises all of them as one error: DataError when all are about data, Unavailable when waiting may mend all,
        else ConfigError; nothing when there is none."""
        if not self._lines:
            return
        kinds = set(self._lines.values())
        raise (kinds.pop() if len(kinds) == 1 else ConfigError)("\n".join(self.lines))
