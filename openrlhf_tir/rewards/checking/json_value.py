"""Read text that may be JSON."""

from __future__ import annotations

import json
from typing import Any


def json_or_none(text: str) -> Any:
    """Return the value of a JSON text.

    Return None for other text, and for JSON that Python's parser refuses: nested too deeply, or a number of 5,000
    digits.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
