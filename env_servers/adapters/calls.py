"""The form of actions and observations that all environments with tools share.

An action is a JSON list of calls; an observation is one line of JSON for each of them.
"""

from __future__ import annotations

import json
from typing import Any

from env_servers.actions import STEP_CHARS, BadAction, read_json

ACTION = 'a JSON list of calls, [{"name": ..., "arguments": {...}}, ...]'
"""What an action is, for /schema and for messages to the model."""
MAX_CALLS = 64
"""Largest number of calls in one action."""


def read_calls(action: str) -> list[tuple[str, dict[str, Any]]]:
    """Return name and arguments of each call in an action. Raises BadAction."""
    try:
        value = read_json(action)
    except BadAction as e:
        raise BadAction(f"{e} Send {ACTION}.") from None
    calls = value if isinstance(value, list) else [value]
    well_formed = all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls)
    if not 0 < len(calls) <= MAX_CALLS or not well_formed:
        raise BadAction(f"This is no list of 1 to {MAX_CALLS} calls. Send {ACTION}.")
    for call in calls:
        arguments = call.get("arguments", {})
        if not isinstance(arguments, dict):
            raise BadAction(
                f"{call['name']}: arguments are {type(arguments).__name__}, not an object of names and values."
            )
    return [(call["name"], call.get("arguments", {})) for call in calls]


class Lines:
    """The observation of a step: a line of JSON for each call.

    A result is cut to `max_chars` characters, and to what the results before it leave of STEP_CHARS. A note says how
    many characters are left out.
    """

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._chars_left = STEP_CHARS
        self._lines: list[str] = []

    def add(self, kind: str, text: str) -> None:
        """Add the line of a call; `kind` is "result" or "error"."""
        limit = min(self._max_chars, self._chars_left)
        left_out = len(text) - limit
        line = text if left_out <= 0 else f"{text[:limit]}... [{left_out} characters left out]"
        self._chars_left -= min(len(text), limit)
        self._lines.append(json.dumps({kind: line}, ensure_ascii=False))

    def __str__(self) -> str:
        return "\n".join(self._lines)
