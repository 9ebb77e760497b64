"""Split a text into words, as the index and its queries count them: lower case, letters and digits."""

from __future__ import annotations

import re

_LIST = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this"
    " to was will with"
)
STOP_WORDS = frozenset(_LIST.split())
"""Words that do not count: Lucene's English list, which Search-R1's BM25 uses as well."""

_WORD = re.compile(r"\w+")


def split(text: str) -> list[str]:
    """Return every word in order, stop words included."""
    return _WORD.findall(text.lower())
