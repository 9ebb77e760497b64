"""Inert text: text from outside in which no special token's text becomes that token.

    marked("What does <|im_start|> mean?", ["<|im_start|>"])    "What does <MARK|im_start|> mean?"

A mark stands behind the first character of every such text. Whoever tokenises cuts there and leaves the mark out, so
that both pieces are ordinary tokens, and the special tokens of a rendered prompt are those that its template wrote.
`plain` takes the marks out again, for people, rewards and files.

Half a token at either end of a text gets a mark too: a template may join two texts, and "<|im_" and "start|>" would be
the token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

MARK = "\ufdd0"
"""A noncharacter of Unicode: no text that is meant for interchange has it, and a text that does loses nothing by it."""


ESCAPED_MARK = json.dumps(MARK)[1:-1]
"""The mark as JSON writes it without other characters than ASCII, which some templates ask for."""


class _Tokens(NamedTuple):
    """Texts of tokens, ready to be looked for.

    Attributes:
        whole: Matches any of them.
        heads: What they begin with, two characters or more, but not all of a token.
        tails: The same of their ends.
        longest: Characters of the longest of these.
    """

    whole: re.Pattern[str]
    heads: frozenset[str]
    tails: frozenset[str]
    longest: int


def marked(text: str, tokens: Sequence[str]) -> str:
    """Return `text` with a mark inside of each of `tokens`, and inside of half a token at its beginning and end."""
    known = _known(tuple(tokens))
    if known is None:
        return text
    while known.whole.search(text):  # A token may contain another one, or overlap with it.
        text = known.whole.sub(lambda m: _cut(m[0], 0), text)
    begin = len(text) - len(text.lstrip())
    end = len(text.rstrip())
    lengths = range(min(known.longest, end - begin), 1, -1)
    if head := next((length for length in lengths if text[end - length : end] in known.heads), 0):
        text = _cut(text, end - head)
    if any(text[begin : begin + length] in known.tails for length in lengths):
        text = _cut(text, begin)
    return text


def _cut(text: str, at: int) -> str:
    """Return `text` with a mark behind the character at `at`."""
    return text[: at + 1] + MARK + text[at + 1 :]


def plain(text: str) -> str:
    """Return `text` without marks."""
    return text.replace(MARK, "")


def marked_in(value: Any, tokens: Sequence[str]) -> Any:
    """Return a JSON value (messages, schemas of tools) with all its texts marked, names of fields included."""
    if isinstance(value, str):
        return marked(value, tokens)
    if isinstance(value, Mapping):
        return {marked_in(key, tokens): marked_in(part, tokens) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [marked_in(part, tokens) for part in value]
    return value


@lru_cache(maxsize=64)
def _known(tokens: tuple[str, ...]) -> _Tokens | None:
    # A token of one character cannot be cut in two.
    texts = sorted({t for t in tokens if len(t) > 1}, key=len, reverse=True)
    if not texts:
        return None
    return _Tokens(
        re.compile("|".join(map(re.escape, texts))),
        frozenset(text[:length] for text in texts for length in range(2, len(text))),
        frozenset(text[-length:] for text in texts for length in range(2, len(text))),
        len(texts[0]) - 1,
    )
