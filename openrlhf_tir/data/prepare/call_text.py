"""Read calls as ToolACE and BFCL write them: "[name(key=value, ...), name(...)]" -> [{"name", "arguments"}].

A name may contain spaces ("Market Trends API"), so this is not Python. Values are Python or JSON literals (True or
true, None or null).
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

KEY = re.compile(r"\s*([^\W\d][\w.$ -]*?)\s*=(?!=)")
CONSTANTS = {"true": True, "false": False, "null": None}
OPENING, CLOSING = "([{", ")]}"


def looks_like_calls(text: str) -> bool:
    """Return True if a turn is meant as calls: brackets around something with parentheses."""
    stripped = text.strip()
    return stripped.startswith("[") and stripped.endswith("]") and "(" in stripped


def read_calls(text: str) -> list[dict[str, Any]]:
    """Return the calls. Raises ValueError if the text is not a list of calls with named arguments that JSON can
    hold."""
    stripped = text.strip()
    if not looks_like_calls(stripped):
        raise ValueError("no list of calls")
    calls = []
    for part in _split(stripped[1:-1]):
        name, opening, rest = part.partition("(")
        if not name.strip() or not opening or not rest.rstrip().endswith(")"):
            raise ValueError(f"{part.strip()[:60]!r} is no call")
        calls.append({"name": name.strip(), "arguments": _arguments(rest.rstrip()[:-1])})
    return calls


def _arguments(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in _split(text):
        key = KEY.match(part)
        if key is None or key[1] in found:
            raise ValueError(f"{part.strip()[:60]!r} is no named argument, or is given twice")
        found[key[1]] = _literal(part[key.end() :].strip())
    return found


def _split(text: str) -> list[str]:
    """Split at the commas outside brackets and quotes. Raises ValueError if these do not match."""
    parts, start, depth, quote, skip = [], 0, 0, "", False
    for i, char in enumerate(text):
        if skip:
            skip = False
        elif quote:
            skip = char == "\\"
            quote = "" if char == quote else quote
        elif char in "\"'" and _opens_text(text, i):
            quote = char
        elif char in OPENING:
            depth += 1
        elif char in CLOSING:
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
        if depth < 0:
            raise ValueError("a bracket is closed that was not opened")
    if depth or quote:
        raise ValueError("a bracket or a quote is not closed")
    return [*parts, text[start:]] if text[start:].strip() else parts


def _opens_text(text: str, i: int) -> bool:
    """Return True if a quote opens a text. An apostrophe in a function's name ("User's Files(") does not."""
    before = text[:i].rstrip()
    return not before or before[-1] in "=,:([{"


def _literal(text: str) -> Any:
    try:
        tree = ast.parse(text, mode="eval")
        value = ast.literal_eval(_Constants().visit(tree))
        json.dumps(value, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise ValueError(f"{text[:60]!r} is no literal") from None
    return value


class _Constants(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(CONSTANTS[node.id]) if node.id in CONSTANTS else node
