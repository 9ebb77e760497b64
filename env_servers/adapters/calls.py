"""What tool environments share: an action is a JSON list of calls, an observation one line of JSON for each."""

from __future__ import annotations

import json
from typing import Any

from env_servers.actions import STEP_CHARS, BadAction, read_json

ACTION = 'a JSON list of calls, [{"name": ..., "arguments": {...}}, ...]'
MAX_CALLS = 64
"""Calls of one action that are carried out."""


def read_calls(action: str) -> list[tuple[str, dict[str, Any]]]:
    """[(name, arguments)]. Raises BadAction."""
    try:
        said = read_json(action)
    except BadAction as e:
        raise BadAction(f"{e} Send {ACTION}.") from None
    calls = said if isinstance(said, list) else [said]
    if not 0 < len(calls) <= MAX_CALLS or not all(
        isinstance(c, dict) and isinstance(c.get("name"), str) for c in calls
    ):
        raise BadAction(f"This is no list of 1 to {MAX_CALLS} calls. Send {ACTION}.")
    if bad := next((c for c in calls if not isinstance(c.get("arguments", {}), dict)), None):
        raise BadAction(
            f"{bad['name']}: arguments are {type(bad['arguments']).__name__}, not an object of names and values."
        )
    return [(c["name"], c.get("arguments", {})) for c in calls]


class Lines:
    """A step's observation: a line of JSON for each call. Cut is what is longer than `max_chars`, or than what is left
    of STEP_CHARS; it says so."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._left = STEP_CHARS
        self._lines: list[str] = []

    def add(self, kind: str, text: str) -> None:
        """`kind`: "result" or "error"."""
        room = min(self._max_chars, self._left)
        left_out = len(text) - room
        shown = text if left_out <= 0 else f"{text[:room]}... [{left_out} characters left out]"
        self._left -= min(len(text), room)
        self._lines.append(json.dumps({kind: shown}, ensure_ascii=False))

    def __str__(self) -> str:
        return "\n".join(self._lines)
