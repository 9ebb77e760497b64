"""Words: the pieces of one, the words that they make, and edits of a value as bash makes them."""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Iterable
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
    current: str | None = None
    for part in parts:
        if part.items is not None:
            for i, item in enumerate(part.items):
                if i:
                    words.append(current or "")
                    current = item
                else:
                    current = (current or "") + item
        elif not part.split:
            current = (current or "") + part.text
        else:
            pieces = part.text.split()
            if not pieces:
                if part.text and current is not None:
                    words.append(current)
                    current = None
                continue
            if part.text[0].isspace() and current is not None:
                words.append(current)
                current = None
            for i, piece in enumerate(pieces):
                if i:
                    words.append(current or "")
                    current = piece
                else:
                    current = (current or "") + piece
            if part.text[-1].isspace():
                words.append(current or "")
                current = None
    if current is not None:
        words.append(current)
    return words


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


def ansi(text: str) -> str:
    """Return what $'...' means."""
    escapes = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "e": "\033", "0": "\0"}
    return re.sub(r"\\(.)", lambda m: escapes.get(m[1], m[0]), text)


_DIRECTIVE = re.compile(r"%([-+ 0#]*\d*(?:\.\d+)?)([sdiqufgeb%])")


def printf(form: str, arguments: list[str]) -> str | None:
    """Return what printf prints: the format again and again, until it has used all arguments.

    Args:
        form: The format, with backslash escapes.
        arguments: What its directives take.

    Returns:
        The text; None for a directive that is not known, or an argument that is no number where one is needed.
    """
    form = ansi(form)
    if "%" in _DIRECTIVE.sub("", form):
        return None
    rest = list(arguments)

    def one(match: re.Match[str]) -> str:
        flags, kind = match[1], match[2]
        if kind == "%":
            return "%"
        word = rest.pop(0) if rest else ""
        if kind in "sqb":
            return f"%{flags}s" % (shlex.quote(word) if kind == "q" else word)
        number = float(word or 0)
        return f"%{flags}{kind}" % (int(number) if kind in "diu" else number)

    printed = []
    try:
        while True:
            before = len(rest)
            printed.append(_DIRECTIVE.sub(one, form))
            if not rest or len(rest) == before:
                return "".join(printed)
    except (ValueError, OverflowError):
        return None
