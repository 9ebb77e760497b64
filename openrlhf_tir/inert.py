"""Inert text: text from outside in which no special token's text becomes that token.

    marked("What does <|im_start|> mean?", ["<|im_start|>"])    "What does <MARK|im_start|> mean?"

A mark stands behind the first character of every such text. Whoever tokenises cuts there and leaves the mark out, so
that both pieces are ordinary tokens, and the special tokens of a rendered prompt are those that its template wrote.
`plain` takes the marks out again, for people, rewards and files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

MARK = "\ufdd0"
"""A noncharacter of Unicode: no text that is meant for interchange has it, and a text that does loses nothing by it."""


def marked(text: str, tokens: Sequence[str]) -> str:
    """Return `text` with a mark inside of each of `tokens`."""
    pattern = _any_of(tuple(tokens))
    return pattern.sub(lambda m: m[0][0] + MARK + m[0][1:], text) if pattern else text


def plain(text: str) -> str:
    """Return `text` without marks."""
    return text.replace(MARK, "")


def marked_in(value: Any, tokens: Sequence[str]) -> Any:
    """Return a JSON value (messages, schemas of tools) with all its texts marked, names of fields excepted."""
    if isinstance(value, str):
        return marked(value, tokens)
    if isinstance(value, Mapping):
        return {key: marked_in(part, tokens) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [marked_in(part, tokens) for part in value]
    return value


@lru_cache(maxsize=64)
def _any_of(tokens: tuple[str, ...]) -> re.Pattern[str] | None:
    # A token of one character cannot be cut in two.
    texts = sorted({t for t in tokens if len(t) > 1}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, texts))) if texts else None
