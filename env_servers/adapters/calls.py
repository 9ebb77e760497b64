"""What tool environments have in common: an action is a JSON list of calls, an observation one line of JSON for each."""

from __future__ import annotations

import json
from typing import Any

ACTION = 'a JSON list of calls, [{"name": ..., "arguments": {...}}, ...]'
MAX_CALLS = 64
"""Calls of one action that are carried out."""


class BadAction(Exception):
    """The model's text is no list of calls; the message is for it."""


def read_calls(action: str) -> list[tuple[str, dict[str, Any]]]:
    """[(name, arguments)]. Raises BadAction."""
    try:
        said = json.loads(action)
    except (ValueError, RecursionError) as e:
        raise BadAction(f"This is no JSON: {e}. Send {ACTION}.") from None
    calls = said if isinstance(said, list) else [said]
    if not 0 < len(calls) <= MAX_CALLS or not all(isinstance(c, dict) and isinstance(c.get("name"), str) for c in calls):
        raise BadAction(f"This is no list of 1 to {MAX_CALLS} calls. Send {ACTION}.")
    if bad := next((c for c in calls if not isinstance(c.get("arguments", {}), dict)), None):
        raise BadAction(f"{bad['name']}: arguments are {type(bad['arguments']).__name__}, not an object of names and values.")
    return [(c["name"], c.get("arguments", {})) for c in calls]


def line(kind: str, text: str, max_chars: int) -> str:
    """One call's line; `kind`: "result" or "error". What is longer than `max_chars` is cut, and says so."""
    left_out = len(text) - max_chars
    shown = text if left_out <= 0 else f"{text[:max_chars]}... [{left_out} characters left out]"
    return json.dumps({kind: shown}, ensure_ascii=False)
