"""Other words for a text, made of words that tests contain anyway."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

WORD = re.compile(r"[A-Za-z0-9]+")
MAX_SEARCHED = 500
"""Characters of a text in which words are looked for."""


def _is_equal_ignoring_case(value: Any, other: Any) -> bool:
    """Return True for equal values, and for texts that differ by case only."""
    if isinstance(value, str) and isinstance(other, str):
        return value.casefold() == other.casefold()
    return bool(value == other)


def _with_two_words_swapped(text: str) -> Iterator[str]:
    """Yield the text with two of its words swapped, once for each pair."""
    words = list(WORD.finditer(text[:MAX_SEARCHED]))[:20]
    for i, a in enumerate(words):
        for b in words[i + 1 :]:
            if a.group().casefold() != b.group().casefold():
                yield text[: a.start()] + b.group() + text[a.end() : b.start()] + a.group() + text[b.end() :]


def _with_another_word(text: str, texts: Sequence[str]) -> Iterator[str]:
    """Yield the text with one of its words replaced by a word of other texts, in the case of the replaced word.

    Texts that differ by case only count as one.
    """
    words = sorted({word for other in texts for word in WORD.findall(other[:MAX_SEARCHED])})
    for match in WORD.finditer(text[:MAX_SEARCHED]):
        word = match.group()
        for other in words:
            if other.isdigit() != word.isdigit():
                continue
            written = other
            if word.islower():
                written = other.lower()
            elif word.isupper():
                written = other.upper()
            elif word.istitle():
                written = other.capitalize()
            if written.casefold() != word.casefold():
                yield text[: match.start()] + written + text[match.end() :]
