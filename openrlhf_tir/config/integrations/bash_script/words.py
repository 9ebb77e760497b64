"""Words: the pieces of one, the words that they make, and edits of a value as bash makes them."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A piece of a word. `split`: an unquoted expansion, which bash cuts at white space. `items`: "${array[@]}"."""

    text: str = ""
    split: bool = False
    items: tuple[str, ...] | None = None


def fields(parts: list[Part]) -> list[str]:
    """Return the words that the pieces of one word make."""
    words: list[str] = []
    current = ""
    is_quoted = False  # an empty word is one only if quotes made it
    for part in parts:
        texts: Sequence[str] = (part.text,)
        if part.items is not None:
            texts = part.items
        elif part.split:
            texts = re.split(r"\s+", part.text)
        for i, text in enumerate(texts):
            if i and (current or is_quoted):
                words.append(current)
            if i:
                current = ""
                is_quoted = False
            current += text
            is_quoted = is_quoted or not part.split
    return [*words, current] if current or is_quoted else words


def joined(parts: Iterable[Part]) -> str:
    """Return the text that pieces make where bash does not split it: an assignment, a test, a here-document."""
    return "".join(part.text if part.items is None else " ".join(part.items) for part in parts)


def without(value: str, pattern: str, *, at_end: bool, longest: bool) -> str:
    """Return `value` without the part at one end that matches a glob."""
    cuts = range(len(value) + 1) if at_end == longest else range(len(value), -1, -1)
    for cut in cuts:
        part, rest = (value[cut:], value[:cut]) if at_end else (value[:cut], value[cut:])
        if fnmatch.fnmatchcase(part, pattern):
            return rest
    return value


def split_at(separators: str, text: str, most: int = 0) -> list[str]:
    """Return the parts of a text between the characters of IFS, at most so many; 0 for all."""
    signs = re.escape("".join(separators.split()))
    has_blanks = any(map(str.isspace, separators))
    if has_blanks:
        text = text.strip()
    if not text or not separators:
        return [text] if text else []
    pattern = r"\s+"
    if signs:
        pattern = rf"\s*[{signs}]\s*|\s+" if has_blanks else f"[{signs}]"
    parts = re.split(pattern, text)
    if not parts[-1]:
        parts.pop()  # a separator at the end only ends the last part
    if not most or len(parts) <= most:
        return parts
    return [text] if most == 1 else re.split(pattern, text, maxsplit=most - 1)
