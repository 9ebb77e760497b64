"""Words: the pieces of one, the words that they make, and edits of a value as bash makes them."""

from __future__ import annotations

import fnmatch
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_BRACES = re.compile(r"(?<![$\\])\{([^\s{}'\"`\\]*,[^\s{}'\"`\\]*|(-?\d+)\.\.(-?\d+))\}")
"""{a,b} and {1..3}, alternatives of a word."""
MAX_ALTERNATIVES = 200
"""Words, or numbers, that are made of one."""
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b", "E": "\x1b"}
_FORMAT = re.compile(r"(?:[^%\\]|%%|%s|%0?\d*d|\\[nt\\])*")
_DIRECTIVE = re.compile(r"%(?:s|0?\d*d)")


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


def braces_expanded(raw: str) -> list[str]:
    """Return the words that `a{b,c}` or `{1..3}` stands for, as source.

    Nothing for a source with quotes, or with braces inside of `${...}` or `$(...)`: these may stand for themselves.
    """
    if re.search(r"['\"`]|\$\{[^}]*\{|\$\([^)]*\{", raw):
        return []
    done: list[str] = []
    pending = [raw]
    while pending and len(done) + len(pending) < MAX_ALTERNATIVES:
        word = pending.pop(0)
        match = _BRACES.search(word)
        if match is None:
            done.append(word)
            continue
        items = match[1].split(",")
        if match[2] is not None:
            first, last = int(match[2]), int(match[3])
            step = 1 if first <= last else -1
            width = max(map(len, match.group(2, 3))) if re.search(r"(?<!\d)-?0\d", match[1]) else 0
            items = [f"{i:0{width}d}" for i in range(first, last + step, step)[:MAX_ALTERNATIVES]]
        pending = [f"{word[: match.start()]}{item}{word[match.end() :]}" for item in items] + pending
    return [] if pending else done


def without_escapes(text: str) -> str:
    """Return what stands in $'...' with its escapes replaced."""

    def replaced(match: re.Match[str]) -> str:
        octal, *hexadecimal, letter = match.groups()
        if octal:
            return chr(int(octal, 8))
        if letter:
            return _ESCAPES.get(letter, letter if letter in "\\'\"?" else match[0])
        number = int("".join(filter(None, hexadecimal)), 16)
        is_character = number <= sys.maxunicode and not 0xD800 <= number < 0xE000
        return chr(number) if is_character else match[0]

    return _ESCAPE.sub(replaced, text)


def formatted(words: Sequence[str]) -> str | None:
    """Return what printf prints of a format with texts and whole numbers; None for any other."""
    words = words[1:] if words[:1] == ["--"] else words
    if not words or _FORMAT.fullmatch(words[0]) is None:
        return None
    form, values = without_escapes(words[0]), words[1:]
    kinds = _DIRECTIVE.findall(form.replace("%%", ""))
    if len(kinds) != len(values):
        return None
    try:
        return form % tuple(value if kind == "%s" else int(value) for kind, value in zip(kinds, values, strict=True))
    except ValueError:
        return None


def sequence(first: int, *steps_and_last: int) -> str | None:
    """Return what `seq FIRST LAST` or `seq FIRST STEP LAST` prints; None where that is nothing or too much."""
    *steps, last = steps_and_last
    step = steps[0] if steps else 1
    numbers = range(first, last + (1 if step > 0 else -1), step) if step else range(0)
    return "".join(f"{number}\n" for number in numbers) if 0 < len(numbers) < MAX_ALTERNATIVES else None
