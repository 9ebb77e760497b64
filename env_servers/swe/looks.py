"""Looks: whether a file was looked at before it was first edited. A fact about how a session went, for who trains on
it; nothing is decided by it.

A look is a `view` of the file, or a command of bash that has its name in it (cat f.py, grep x f.py). An edit is the
editor's str_replace or insert, done or refused: what bash changes cannot be told from what it shows.
"""

from __future__ import annotations

from typing import Any

EDITS = ("str_replace", "insert")


class Looks:
    """What one session has looked at."""

    def __init__(self) -> None:
        self.viewed_first: bool | None = None
        """None until something is edited."""
        self._at: list[str] = []

    def note(self, name: str, arguments: dict[str, Any]) -> None:
        """A call with checked arguments (tools.checked), before it is run."""
        if name == "execute_bash":
            self._at.append(arguments["command"])
        elif name == "str_replace_editor" and arguments["command"] == "view":
            self._at.append(arguments["path"])
        elif name == "str_replace_editor" and arguments["command"] in EDITS and self.viewed_first is None:
            file = arguments["path"].rpartition("/")[2]
            self.viewed_first = any(file in looked for looked in self._at)
