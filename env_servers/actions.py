"""The form of actions and observations that environments with tools share.

An action is JSON: a list of calls, or in a dialogue a message. An observation is often one line of JSON for each call,
and is cut to what a reply can hold.
"""

from __future__ import annotations

import json
import math
from typing import Any

STEP_CHARS = 1 << 17
"""Characters of all results of one step together. Escaped as JSON they stay below the megabyte that a reply may
have."""
CALLS = 'a JSON list of calls, [{"name": ..., "arguments": {...}}, ...]'
"""What an action is, for /schema and for messages to the model."""
MAX_CALLS = 64
"""Largest number of calls in one action."""
MAX_DEPTH = 64
"""Levels of lists and objects within one another. Serializers of other programs fail above it and close the
connection."""


class BadAction(Exception):
    """Raised when the text of the model is not an action. The message is shown to the model."""


def read_json(action: str, expected: str) -> Any:
    """Parse an action that is JSON.

    Args:
        action: What the model wrote.
        expected: What an action is, for the message to the model.

    Raises:
        BadAction: The text is not JSON, or could not be sent on to another program: it is nested too deeply, or holds
            half of a surrogate pair or a number that is not finite.
    """
    try:
        value = json.loads(action)
    except (ValueError, RecursionError) as e:
        raise BadAction(f"This is no JSON: {e}. Send {expected}.") from None
    if fault := _unsendable(value, MAX_DEPTH):
        raise BadAction(f"This is no JSON that can be sent on: {fault}. Send {expected}.")
    return value


def read_message_or_calls(action: str, expected: str) -> str | list[tuple[str, dict[str, Any]]]:
    """Return the text of {"message": text}, or name and arguments of each call in a list of calls.

    `expected` is what `read_json` takes. Raises BadAction.
    """
    value = read_json(action, expected)
    if isinstance(value, dict) and isinstance(value.get("message"), str):
        return str(value["message"])
    return _calls_of(value, expected)


def read_calls(action: str) -> list[tuple[str, dict[str, Any]]]:
    """Return name and arguments of each call in an action. Raises BadAction."""
    return _calls_of(read_json(action, CALLS), CALLS)


def _calls_of(value: Any, expected: str) -> list[tuple[str, dict[str, Any]]]:
    calls = value if isinstance(value, list) else [value]
    well_formed = all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls)
    if not 0 < len(calls) <= MAX_CALLS or not well_formed:
        raise BadAction(f"This is no list of 1 to {MAX_CALLS} calls. Send {expected}.")
    for call in calls:
        arguments = call.get("arguments", {})
        if not isinstance(arguments, dict):
            raise BadAction(
                f"{call['name']}: arguments are {type(arguments).__name__}, not an object of names and values."
            )
    return [(call["name"], call.get("arguments", {})) for call in calls]


def _unsendable(value: Any, levels_left: int) -> str | None:
    """Return why a parsed value cannot be sent on as JSON; None if it can."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return "it has half of a surrogate pair"
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return f"JSON has no number {value}"
    if not isinstance(value, list | dict):
        return None
    if not levels_left:
        return f"more than {MAX_DEPTH} lists and objects are within one another"
    parts = value if isinstance(value, list) else [*value, *value.values()]
    return next((fault for part in parts if (fault := _unsendable(part, levels_left - 1))), None)


def cut_to_reply(text: str) -> str:
    """Return the text, cut to STEP_CHARS characters with a note of how many are left out."""
    return cut(text, STEP_CHARS)


def cut(text: str, chars: int) -> str:
    """Return the text, cut to a number of characters with a note of how many are left out."""
    left_out = len(text) - chars
    return text if left_out <= 0 else f"{text[:chars]}... [{left_out} characters left out]"


def sendable(text: str) -> str:
    """Return the text with every half of a surrogate pair, which JSON cannot hold, as an escape."""
    return text.encode("utf-8", "backslashreplace").decode()


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
        line = cut(text, limit)
        self._chars_left -= min(len(text), limit)
        self._lines.append(json.dumps({kind: line}, ensure_ascii=False))

    def __str__(self) -> str:
        return "\n".join(self._lines)
