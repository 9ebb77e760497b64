"""What goes over the wire of a tool environment: actions that are JSON and can be sent on, observations that a reply
can hold."""

from __future__ import annotations

import json
import math
from typing import Any

STEP_CHARS = 1 << 17
"""Characters shown of one step's results together: with each escaped, less than the megabyte that a reply may have."""
MAX_DEPTH = 64
"""Lists and objects within one another. Other people's serializers give up above, and take the connection along."""


class BadAction(Exception):
    """The model's text is no action; the message is for it."""


def read_json(action: str) -> Any:
    """Raises BadAction, also for JSON that could not be sent on: too deep, half of a surrogate pair in a text, or a
    number that is not finite."""
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
    if isinstance(said, float) and not math.isfinite(said):
        return f"{said} is no number of it"
    if not isinstance(said, list | dict):
        return None
    if not depth:
        return f"more than {MAX_DEPTH} lists and objects are within one another"
    parts = said if isinstance(said, list) else [*said, *said.values()]
    return next((wrong for part in parts if (wrong := _unsendable(part, depth - 1))), None)


def shown(text: str) -> str:
    """Cut at what a reply can hold; it says so."""
    left_out = len(text) - STEP_CHARS
    return text if left_out <= 0 else f"{text[:STEP_CHARS]}... [{left_out} characters left out]"
