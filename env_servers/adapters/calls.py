"""What tool environments share: an action is a JSON list of calls, an observation one line of JSON for each."""

from __future__ import annotations

import json
from typing import Any

ACTION = 'a JSON list of calls, [{"name": ..., "arguments": {...}}, ...]'
MAX_CALLS = 64
"""Calls of one action that are carried out."""
MAX_DEPTH = 64
"""Lists and objects within one another. Other people's serializers give up above, and take the connection along."""
STEP_CHARS = 1 << 17
"""Characters shown of one step's results together: with each escaped, less than the megabyte that a reply may have."""


class BadAction(Exception):
    """The model's text is no action; the message is for it."""


def read_json(action: str) -> Any:
    """Raises BadAction, also for JSON that could not be sent on: too deep, or half of a surrogate pair in a text."""
    try:
        said = json.loads(action)
    except (ValueError, RecursionError) as e:
        raise BadAction(f"This is no JSON: {e}.") from None
    if wrong := _unsendable(said, MAX_DEPTH):
        raise BadAction(f"This is no JSON that can be sent on: {wrong}.")
    return said


def _unsendable(said: Any, depth: int) -> str | None:
    """What is wrong with it."""
    if isinstance(said, str):
        try:
            said.encode()
        except UnicodeEncodeError:
            return "it has half of a surrogate pair"
        return None
    if not isinstance(said, list | dict):
        return None
    if not depth:
        return f"more than {MAX_DEPTH} lists and objects are within one another"
    parts = said if isinstance(said, list) else [*said, *said.values()]
    return next((wrong for part in parts if (wrong := _unsendable(part, depth - 1))), None)


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
        self._max_chars, self._left = max_chars, STEP_CHARS
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
