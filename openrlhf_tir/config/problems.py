"""Problems: every mistake of a command, told at once instead of one per run.

    with problems.caught():        a ConfigError, DataError or Unavailable becomes a line, and the next check still runs
        check_names(cfg)
    problems.raise_any()

A check that runs on a configuration from which bad values were left out may complain about what replaced them. Lines
that name such a key are dropped: they would send the reader to a value that is not there.

Each mistake has a code and a setting (errors.Problem). The setting is the first one that its message names, unless the
place that found it says which: a message begins with the fact.
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
"""Lines that are shown; a binary file taken for a recipe could have thousands."""


class Problems:
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
        """Add mistakes. One that was added before, or is of a key that was left out, is not added.

        Args:
            lines: Fact, value and remedy of each, or mistakes that have a code; or an error, which has mistakes.
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
        if not line.strip() or any(key.search(line) for key in self._left_out):
            return
        problem = replace(problem, message=shorten(line, 1500), setting=problem.setting or setting_in(line))
        self._problems.setdefault(problem.message, (problem, kind))

    def leave_out(self, key: str) -> None:
        """The value of `key` (or of the section `key.`) is bad: replaced by its default. Say why before, with `add`."""
        self._left_out.append(re.compile(rf"(?<![\w.]){re.escape(key)}" + ("" if key.endswith(".") else r"(?![\w])")))

    @contextmanager
    def caught(self, said: Callable[[str], str] = str, code: str | None = None) -> Iterator[None]:
        """Add the mistakes of an error that the body raises.

        Args:
            said: Returns the message to add for a message of the error.
            code: The code of an error that has none of its own.
        """
        try:
            yield
        except (ConfigError, DataError, Unavailable) as e:
            for problem in problems_of(e, code):
                self._add(replace(problem, message=said(problem.message)), type(e))

    @property
    def lines(self) -> list[str]:
        """The mistakes, one each; after MOST of them a line that says how many more there are."""
        lines = [*self._problems]
        if len(lines) > MOST:
            lines[MOST:] = [f"... and {len(lines) - MOST} more. Correct these first."]
        return lines

    def raise_any(self) -> None:
        """Raises all of them as one error: DataError when all are about data, Unavailable when waiting may mend all,
        else ConfigError; nothing when there is none."""
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
    found = [asdict(problem) for problem, _ in problems._problems.values()]
    return {"error": type(error).__name__, "code": found[0]["code"], "setting": found[0]["setting"], "problems": found}


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
