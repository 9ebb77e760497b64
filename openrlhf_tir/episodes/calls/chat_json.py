"""Tool calls as the chat models of Meta and Mistral write them.

    llama3    {"name": ..., "parameters": {...}}                        the whole message; <|python_tag|> may begin it;
                                                                        several are separated by ";"
    mistral   [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]     what stands before the mark is text

Sources: Llama 3.1's model card ("JSON based tool calling"), the documentation of Mistral's function calling. The marks
are special tokens: a parser is given text that shows them.
"""

from __future__ import annotations

import json

from .json_text import call_of, load
from .tool_call import Malformed, ParsedCall

PYTHON_TAG = "<|python_tag|>"
TOOL_CALLS = "[TOOL_CALLS]"


def llama3_calls(text: str) -> list[ParsedCall | Malformed]:
    """A message that is no JSON object with a name calls nothing, unless its tag says that it does."""
    body, tagged = text.strip().removeprefix(PYTHON_TAG).strip(), PYTHON_TAG in text
    if not body.startswith("{") or not (tagged or '"name"' in body):
        return [Malformed(body, "not_json", "A call is a JSON object: write it behind the tag.")] if tagged else []
    found: list[ParsedCall | Malformed] = []
    decoder, at = json.JSONDecoder(), 0
    while at < len(body):
        try:
            _, end = decoder.raw_decode(body, at)
        except (ValueError, RecursionError) as e:
            return [*found, Malformed(body[at:], "not_json", f"The call is not valid JSON: {e}.")]
        value = load(body[at:end])
        found.append(value if isinstance(value, Malformed) else call_of(value, "parameters", body[at:end]))
        rest = body[end:].lstrip("; \n")
        at = len(body) - len(rest)
    return found


def mistral_calls(text: str) -> list[ParsedCall | Malformed]:
    _, marked, block = text.partition(TOOL_CALLS)
    if not marked:
        return []
    value = load(block)
    if isinstance(value, Malformed):
        return [value]
    if not isinstance(value, list) or not value:
        return [Malformed(block, "not_a_call", f"Behind {TOOL_CALLS} stands a list of calls.")]
    return [call_of(item, "arguments", block) for item in value]
