"""Tool calls as JSON between <tool_call> tags, in the forms that methods train.

    hermes   one object per block, any number of blocks          {"name": ..., "arguments": {...}}
    toolrl   first block, one object per line                    {"name": ..., "parameters": {...}}
    tooln1   last block, a list (a lone object is a list of one) [{"name": ..., "arguments": {...}}]
    tool     the same between <tool> tags                        ARTIST

Sources: Qwen's chat template; arXiv 2504.13958; arXiv 2505.00024. Arguments may be missing (a call without arguments),
or JSON in a string, because some models encode them twice. Values that JSON does not have (NaN, half of a surrogate
pair) are malformed, because they could not be sent to a server.
"""

from __future__ import annotations

import json
from typing import Any

from .tool_call import Malformed, ParsedCall, blocks, unclosed

MAX_DEPTH = 64
"""Largest nesting of lists and objects in a call, as in env_servers/actions.py. Serializers of other servers fail on
deeper values, and that would count as an infrastructure failure."""
OPEN = "<tool_call>"
CLOSE = "</tool_call>"
TOOL_OPEN = "<tool>"
TOOL_CLOSE = "</tool>"


def hermes_calls(text: str) -> list[ParsedCall | Malformed]:
    """Return the calls of a text in the format `hermes`."""
    return [
        call_from_json(block.text, "arguments") if block.closed else unclosed(block, CLOSE)
        for block in blocks(text, OPEN, CLOSE)
    ]


def toolrl_calls(text: str) -> list[ParsedCall | Malformed]:
    """Return the calls of a text in the format `toolrl`."""
    block = next(blocks(text, OPEN, CLOSE), None)
    if block is None:
        return []
    if not block.closed:
        return [unclosed(block, CLOSE)]
    lines = [line for line in block.text.split("\n") if line.strip()]
    return [call_from_json(line, "parameters") for line in lines or [block.text]]


def tooln1_calls(text: str) -> list[ParsedCall | Malformed]:
    """Return the calls of a text in the format `tooln1`.

    An empty list makes no call and is not malformed: Tool-N1 answers so if no tool fits.
    """
    return _calls_in_list(text, OPEN, CLOSE)


def tool_calls(text: str) -> list[ParsedCall | Malformed]:
    """Return the calls of a text in the format `tool`."""
    return _calls_in_list(text, TOOL_OPEN, TOOL_CLOSE)


def _calls_in_list(text: str, opening: str, closing: str) -> list[ParsedCall | Malformed]:
    """Return the calls of the last block, which holds a JSON list or a single call."""
    all_blocks = list(blocks(text, opening, closing))
    if not all_blocks:
        return []
    block = all_blocks[-1]
    if not block.closed:
        return [unclosed(block, closing)]
    value = load(block.text)
    if isinstance(value, Malformed):
        return [value]
    return [call_of(item, "arguments", block.text) for item in (value if isinstance(value, list) else [value])]


def call_from_json(text: str, key: str) -> ParsedCall | Malformed:
    """Return the call in a JSON text. See `call_of` for `key`."""
    value = load(text)
    return value if isinstance(value, Malformed) else call_of(value, key, text)


def load(text: str) -> Any | Malformed:
    """Return the JSON value of `text`. A value that is encoded twice is decoded twice."""
    if not text.strip():
        return Malformed(text, "empty", "The call is empty.")
    try:
        value = json.loads(text, parse_constant=_refuse)
        if isinstance(value, str):
            value = json.loads(value, parse_constant=_refuse)
        # Raises for a number that overflowed to infinity (1e999), and for half of a surrogate pair.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as e:
        return Malformed(text, "not_json", f"The call is not valid JSON: {e}.")
    if _is_deeper(value, MAX_DEPTH):
        return Malformed(text, "not_json", f"The call has more than {MAX_DEPTH} lists and objects within one another.")
    return value


def _is_deeper(value: Any, depth: int) -> bool:
    """Return True if lists and objects are nested more than `depth` deep. Iterative: a recursion could overflow."""
    level = [value]
    for _ in range(depth + 1):
        nested = [node for node in level if isinstance(node, list | dict)]
        level = [part for node in nested for part in (node.values() if isinstance(node, dict) else node)]
        if not level:
            return False
    return any(isinstance(node, list | dict) for node in level)


def call_of(value: Any, key: str, text: str) -> ParsedCall | Malformed:
    """Return the call that a JSON value describes.

    Args:
        value: The JSON value.
        key: Name of the field that holds the arguments: "arguments" or "parameters".
        text: Text of the value, for `Malformed`.
    """
    if not isinstance(value, dict):
        return Malformed(
            text,
            "not_a_call",
            f'A call is a JSON object like {{"name": ..., "{key}": {{...}}}}, not {type(value).__name__}.',
        )
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return Malformed(text, "no_name", 'The call does not name a tool: "name" must be a string.')
    arguments = value.get(key, {})
    if isinstance(arguments, str):
        arguments = load(arguments)
    if not isinstance(arguments, dict):
        return Malformed(text, "bad_arguments", f'"{key}" of {name} must be a JSON object.')
    return ParsedCall(name, arguments)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON value")
