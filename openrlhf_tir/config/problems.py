"""Collect every mistake of a command, to report all at once instead of one per run.

    with problems.caught():        a ConfigError, DataError or Unavailable becomes a line, and the next check still runs
        check_names(cfg)
    problems.raise_any()

A check may run on a configuration in which defaults replaced bad values, and complain about a default. Messages that
name such a setting are dropped: they would send the reader to a value that nobody wrote.

Each mistake has a code and a setting (errors.Problem). Rules between settings know theirs (setting.Rule); the setting
of a message of any other origin is the first one that it names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from ..errors import ConfigError, DataError, Problem, TirError, Unavailable
from .catalog import ENVS, known_keys, settings_of_env
from .paths import shorten

MOST = 60
"""Most lines to show: a binary file that is read as a recipe could have thousands of mistakes."""


class Problems:
    """The mistakes that were found so far, each once."""

    def __init__(self) -> None:
        self._problems: dict[str, tuple[Problem, type[TirError]]] = {}
        self._left_out: list[re.Pattern[str]] = []

    def __bool__(self) -> bool:
        return bool(self._problems)

    def add(
        self,
        lines: str | TirError | Iterable[str | Problem],
        kind: type[TirError] = ConfigError,
        code: str | None = None,
    ) -> None:
        """Add mistakes, except those that were added before or that name a setting that was left out.

        Args:
            lines: Messages with fact, value and remedy, or mistakes that have a code; or an error, which has mistakes.
            kind: The class of error that each is.
            code: The code of each; by default that of `kind`, or of the error.
        """
        if isinstance(lines, TirError):
            for problem in problems_of(lines, code):
                self._add(problem, type(lines))
            return
        for line in lines.splitlines() if isinstance(lines, str) else lines:
            self._add(line if isinstance(line, Problem) else Problem(line, code or kind.reason), kind)

    def _add(self, problem: Problem, kind: type[TirError]) -> None:
        line = problem.message
        named = f"{problem.setting} {line}"
        if not line.strip() or any(key.search(named) for key in self._left_out):
            return
        problem = replace(problem, message=shorten(line, 1500), setting=problem.setting or setting_in(line))
        self._problems.setdefault(problem.message, (problem, kind))

    def leave_out(self, key: str) -> None:
        """Drop later messages about a setting whose bad value was replaced by its default.

        Args:
            key: The setting's dotted name, or a section's with a dot at its end. `add` must have said why before.
        """
        self._left_out.append(re.compile(rf"(?<![\w.]){re.escape(key)}" + ("" if key.endswith(".") else r"(?![\w])")))

    @contextmanager
    def caught(self, rewrite: Callable[[str], str] = str, code: str | None = None) -> Iterator[None]:
        """Collect the mistakes of an error that the body raises.

        Args:
            rewrite: Maps a message of the error to the message that is added.
            code: The code of an error that has none of its own.
        """
        try:
            yield
        except (ConfigError, DataError, Unavailable) as e:
            for problem in problems_of(e, code):
                self._add(replace(problem, message=rewrite(problem.message)), type(e))

    @property
    def lines(self) -> list[str]:
        """A line for each mistake; after MOST of them one line that says how many more there are."""
        lines = [*self._problems]
        if len(lines) > MOST:
            lines[MOST:] = [f"... and {len(lines) - MOST} more. Correct these first."]
        return lines

    def raise_any(self) -> None:
        """Raise all mistakes as one error; do nothing if there is none.

        Raises:
            DataError: All are about data.
            Unavailable: Waiting may mend all of them.
            ConfigError: In all other cases.
        """
        if not self._problems:
            return
        kinds = {kind for _, kind in self._problems.values()}
        error = kinds.pop() if len(kinds) == 1 else ConfigError
        raise error("\n".join(self.lines), problems=[problem for problem, _ in self._problems.values()])


def problems_of(error: TirError, code: str | None = None) -> Iterator[Problem]:
    """Yield the mistakes of an error, a line each.

    Args:
        error: The error.
        code: The code if the error has none of its own.
    """
    for problem in error.problems:
        own = code if code is not None and not (error.given_code or error.given_problems) else problem.code
        for line in problem.message.splitlines():
            yield replace(problem, message=line, code=own)


def as_dict(error: TirError) -> dict[str, Any]:
    """Return what a command with --json prints in place of its result."""
    problems = Problems()
    problems.add(error)
    mistakes = [asdict(problem) for problem, _ in problems._problems.values()]
    first = mistakes[0]
    return {"error": type(error).__name__, "code": first["code"], "setting": first["setting"], "problems": mistakes}


def settings_in(text: str) -> list[str]:
    """Return the settings that a text names, in order."""
    return _settings().findall(text)


def setting_in(text: str) -> str | None:
    """Return the first setting that a text names; None if it names none."""
    return next(iter(settings_in(text)), None)


@cache
def _settings() -> re.Pattern[str]:
    keys = sorted((re.escape(key) for key in known_keys() if "." in key), key=len, reverse=True)
    of_env = "|".join(sorted({s.name.removeprefix(f"{ENVS}.x.") for s in settings_of_env("x")}, key=len, reverse=True))
    return re.compile(rf"(?<![\w./])(?:--)?({'|'.join(keys)}|{ENVS}\.[\w-]+\.(?:{of_env})|run_dir)(?![\w])")
