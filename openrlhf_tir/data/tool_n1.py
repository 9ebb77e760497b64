"""Convert a raw row of Tool-N1 (tools, conversation and answer) to the chat that its model continues, and the true
calls.

    {"tools": JSON, "conversations": JSON, "answer": JSON, "raw_system": text}        as its preprocessing writes them
    {"query": text, "tools": JSON, "answers": JSON}                                   xLAM's, from which it is made

Source: arXiv 2505.00024, appendix; verl/examples/data_preprocess. The system message has the content of theirs in our
words: tools one JSON object per line, a thought, then a list of calls, both in one reply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..errors import DataError
from .fields import json_list, kind, names_of, text_of

ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "observation": "tool",
    "tool": "tool",
    "function_call": "assistant",
}
"""Speaker in a conversation -> role of a chat message."""
EXPERT = (
    "You are an expert in composing functions. You get a question and a list of functions that you may call. Make the"
    " calls that the question needs, one or more."
    " If no function fits, or a parameter that a function needs is not given, say so."
)
"""The system message of a row that has none."""
TOOL_PROMPT = """# Tool

You are given functions in JSON format within <tools></tools>, one per line:

<tools>
{tools}
</tools>

In each step you MUST:
1. Think first, within <think> </think>.
2. Then give a JSON list of calls within <tool_call> </tool_call>: \
[{{"name": <function>, "arguments": <JSON object>}}, ...]
3. Do both in a single reply.
A complete reply: <think>I look the price up and tell Bob.</think> \
<tool_call>[{{"name": "price", "arguments": {{"item": "tea", "amount": 2}}}}, \
{{"name": "email", "arguments": {{"to": "Bob"}}}}]</tool_call>
Give every argument the type that the function asks for. \
If no function is of use, the list is empty: <tool_call>[]</tool_call>"""


def convert(where: str, row: Mapping[str, Any]) -> tuple[list[dict[str, str]], str]:
    """Return the messages, and the label as a JSON list of calls.

    Raises:
        DataError: The row is malformed, or calls a function that is not offered.
    """
    tools = json_list(where, row, "tools")
    names = names_of(where, tools)
    field = "answer" if "answer" in row else "answers"
    calls = json_list(where, row, field)
    for number, call in enumerate(calls):
        if not isinstance(call, Mapping) or not isinstance(call.get("name"), str) or "arguments" not in call:
            raise DataError(
                f'{where}: {field}[{number}] is {kind(call)}, not {{"name": text, "arguments": ...}}.'
                " Correct or remove the row."
            )
        if call["name"] not in names:
            raise DataError(
                f"{where}: {field}[{number}] calls {call['name']!r}, which is none of its tools."
                " Remove the row, as the method does."
            )
    lines = "\n".join(json.dumps({"type": "function", "function": tool}, ensure_ascii=False) for tool in tools)
    system_text = row.get("raw_system") or EXPERT
    if not isinstance(system_text, str):
        raise DataError(f"{where}: raw_system is {kind(system_text)}. Write text.")
    system = {"role": "system", "content": system_text + "\n\n" + TOOL_PROMPT.format(tools=lines)}
    return [system, *_conversation(where, row)], json.dumps(calls, ensure_ascii=False)


def _conversation(where: str, row: Mapping[str, Any]) -> list[dict[str, str]]:
    if "conversations" not in row:
        return [{"role": "user", "content": text_of(where, row, "query")}]
    turns = json_list(where, row, "conversations")
    messages = []
    for number, turn in enumerate(turns):
        role = ROLES.get(str(turn.get("from", turn.get("role")))) if isinstance(turn, Mapping) else None
        if role is None or not isinstance(turn, Mapping):
            raise DataError(
                f'{where}: conversations[{number}] is {kind(turn)}, not {{"from": {"|".join(ROLES)}, "value": ...}}.'
                " Correct or remove the row."
            )
        value = turn.get("value", turn.get("content"))
        messages.append(
            {"role": role, "content": value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}
        )
    if not messages:
        raise DataError(f"{where}: conversations is empty. Remove the row.")
    return messages
