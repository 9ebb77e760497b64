"""Unknown texts: what only running a part of a script could tell, as a text that keeps the part's source."""

from __future__ import annotations

import re

_OPEN = "\ue000"
_CLOSE = "\ue001"
_UNKNOWN = re.compile(f"{_OPEN}([0-9a-f]*){_CLOSE}")
UNKNOWN_ALONE = re.compile(rf"\s*{_UNKNOWN.pattern}\s*")
"""An unknown text with nothing known around it."""


def unknown(source: str) -> str:
    """Return a text that stands for what only running `source` could tell. It survives splitting and a second reading:
    the source is inside in hexadecimal digits."""
    return f"{_OPEN}{' '.join(readable(source).split()).encode().hex()}{_CLOSE}"


def unknowns(text: str) -> list[str]:
    """Return the sources of the unknown parts of a word."""
    return [bytes.fromhex(digits).decode() for digits in _UNKNOWN.findall(text)]


def readable(text: str) -> str:
    """Return a word with its unknown parts as the script wrote them."""
    return _UNKNOWN.sub(lambda match: bytes.fromhex(match[1]).decode(), text)
