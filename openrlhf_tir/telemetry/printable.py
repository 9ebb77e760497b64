r"""Text of a model, an environment or a data set in a form that is safe to print on a terminal.

A terminal obeys what it is sent: an escape sequence in a response can change the title, the clipboard or what was
printed before. So control characters are shown as Python writes them, `\x1b`; only line ends and tabs stay. Characters
that change the direction of the text after them (bidirectional controls) are shown the same way.
"""

from __future__ import annotations

_CONTROLS = [*range(0x20), *range(0x7F, 0xA0)]
_BIDIRECTIONAL = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_SURROGATES = range(0xD800, 0xE000)
_ESCAPES = {
    code: chr(code).encode("unicode_escape", "surrogatepass").decode()
    for code in (*_CONTROLS, *_BIDIRECTIONAL, *_SURROGATES)
    if chr(code) not in "\n\t"
}


def printable(text: str) -> str:
    """Return the text with every control character shown, except line ends and tabs."""
    return text.translate(_ESCAPES)
