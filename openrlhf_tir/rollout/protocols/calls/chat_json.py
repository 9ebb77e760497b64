"""Tool calls as the chat models of Meta and Mistral write them.

    llama3    {"name": ..., "parameters": {...}}                        the whole message; <|python_tag|> may begin it;
                                                                        several are separated by ";"
    mistral   [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]     what stands before the mark is text

Sources: Llama 3.1's model card ("JSON based tool calling"), the documentation of Mistral's function calling. The marks
are special tokens, so the text that these parsers get must contain special tokens.
"""

from __future__ import annotations

import json

from .json_text import call_of, load
from .tool_call import Malformed, ParsedCall

PYTHON_TAG = "<|python_tag|>"
TOOL_CALLS = "[TOOL_CALLS]"


def llama3_calls(text: str) -> list[ParsedCall | Malformed]:
    """Return the calls of a message in Llama 3's format.

    A message that is not a JSON object with a name makes no call, unless it begins with the tag: then it is malformed.
    """
    body = text.strip().removeprefix(PYTHON_TAG).strip()
    has_tag = PYTHON_TAG in text
    if not body.startswith("{") or not (has_tag or '"name"' in body):
        return [Malformed(body, "not_json", "A call is a JSON object: write it behind the tag.")] if has_tag else []
    calls: list[ParsedCall | Malformed] = []
    decoder = json.JSONDecoder()
    start = 0
    while start < len(body):
        try:
            _, end = decoder.raw_decode(body, start)
        except (ValueError, RecursionError) as e:
            return [*calls, Malformed(body[start:], "not_json", f"The call is not valid JSON: {e}.")]
        value = load(body[start:end])
        calls.append(value if isinstance(value, Malformed) else call_of(value, "parameters", body[start:end]))
        start = len(body) - len(body[end:].lstrip("; \n"))
    return calls


def mistral_calls(text: str) -> list[ParsedCall | Malformed]:
    """Return the calls of a message in Mistral's format. A message without the mark makes no call."""
    _, mark, block = text.partition(TOOL_CALLS)
    if not mark:
        return []
    value = load(block)
    if isinstance(value, Malformed):
        return [value]
    if not isinstance(value, list) or not value:
        return [Malformed(block, "not_a_call", f"Behind {TOOL_CALLS} stands a list of calls.")]
    return [call_of(item, "arguments", block) for item in value]
