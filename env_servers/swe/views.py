"""Track whether the model looked at a file before it first edited it.

This is a fact about the session for whoever trains on it; nothing depends on it. A look is a `view` of the file, or a
bash command with its name in it (cat f.py, grep x f.py). An edit is the editor's str_replace or insert, carried out or
refused: the effects of bash cannot be told from its output.
"""

from __future__ import annotations

from typing import Any

EDITS = ("str_replace", "insert")
"""Commands of the editor that count as edits."""


class ViewTracker:
    """What one session has looked at.

    Attributes:
        viewed_first: Whether the first edited file was looked at before; None before the first edit.
    """

    def __init__(self) -> None:
        self.viewed_first: bool | None = None
        self._looked_at: list[str] = []

    def note(self, name: str, arguments: dict[str, Any]) -> None:
        """Record a call with checked arguments (tools.checked) before it is run."""
        if name == "execute_bash":
            self._looked_at.append(arguments["command"])
        elif name == "str_replace_editor" and arguments["command"] == "view":
            self._looked_at.append(arguments["path"])
        elif name == "str_replace_editor" and arguments["command"] in EDITS and self.viewed_first is None:
            file = arguments["path"].rpartition("/")[2]
            self.viewed_first = any(file in text for text in self._looked_at)
