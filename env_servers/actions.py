"""Read actions that are JSON, and cut observations to what a reply can hold. Shared by all environments with tools."""

from __future__ import annotations

import json
import math
from typing import Any

STEP_CHARS = 1 << 17
"""Characters of all results of one step together. Escaped as JSON they stay below the megabyte that a reply may
have."""
MAX_DEPTH = 64
"""Levels of lists and objects within one another. Serializers of other programs fail above it and close the
connection."""


class BadAction(Exception):
    """Raised when the text of the model is not an action. The message is shown to the model."""


def read_json(action: str) -> Any:
    """Parse an action that is JSON.

    Raises:
        BadAction: The text is not JSON, or could not be sent on to another program: it is nested too deeply, or holds
            half of a surrogate pair or a number that is not finite.
    """
    try:
        value = json.loads(action)
    except (ValueError, RecursionError) as e:
        raise BadAction(f"This is no JSON: {e}.") from None
    if fault := _unsendable(value, MAX_DEPTH):
        raise BadAction(f"This is no JSON that can be sent on: {fault}.")
    return value


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
    left_out = len(text) - STEP_CHARS
    if left_out <= 0:
        return text
    return f"{text[:STEP_CHARS]}... [{left_out} characters left out]"
