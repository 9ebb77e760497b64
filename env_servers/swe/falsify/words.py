"""Other words for a text, made of words that tests contain anyway. Texts that differ by case only count as one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

WORD = re.compile(r"[A-Za-z0-9]+")
MAX_SEARCHED = 500
"""Characters of a text in which words are looked for."""
MAX_WORDS = 20
"""Words of a text that are swapped."""


def is_equal_ignoring_case(value: Any, other: Any) -> bool:
    """Return True for equal values, and for texts that differ by case only."""
    if isinstance(value, str) and isinstance(other, str):
        return value.casefold() == other.casefold()
    return bool(value == other)


def with_two_words_swapped(text: str) -> Iterator[str]:
    """Yield the text with two of its words swapped, once for each pair."""
    words = list(WORD.finditer(text[:MAX_SEARCHED]))[:MAX_WORDS]
    for i, first in enumerate(words):
        for second in words[i + 1 :]:
            if first.group().casefold() != second.group().casefold():
                between = text[first.end() : second.start()]
                yield text[: first.start()] + second.group() + between + first.group() + text[second.end() :]


def with_another_word(text: str, texts: Sequence[str]) -> Iterator[str]:
    """Yield the text with one of its words replaced by a word of other texts, in the case of the replaced word.

    A number replaces a number only.
    """
    other_words = sorted({word for other in texts for word in WORD.findall(other[:MAX_SEARCHED])})
    for match in WORD.finditer(text[:MAX_SEARCHED]):
        word = match.group()
        for other in other_words:
            if other.isdigit() != word.isdigit():
                continue
            replacement = _in_case_of(word, other)
            if replacement.casefold() != word.casefold():
                yield text[: match.start()] + replacement + text[match.end() :]


def _in_case_of(word: str, other: str) -> str:
    """Return `other` in lower case, in upper case or capitalized, as `word` is."""
    if word.islower():
        return other.lower()
    if word.isupper():
        return other.upper()
    return other.capitalize() if word.istitle() else other
