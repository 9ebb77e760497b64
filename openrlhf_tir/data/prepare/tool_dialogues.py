"""Translate a step of ToolRL into one of Tool-N1, and back. Both are one decision of a dialogue in which tools may be
called.

    Tool-N1   system: <tools> with a JSON object per line; then the dialogue's messages
              label [{"name", "arguments"}, ...]
    ToolRL    system: "1. Name: ... Description: ... Parameters: {...}"; one user message with the dialogue so far:
              <user>, <obs>, the assistant's blocks
              label <think> <tool_call> {"name", "parameters"} per line, or <think> <response>

What the other form has no place for is lost: thoughts, a reply beside calls, Tool-N1's sentence before its tools.
Sources: arXiv 2504.13958 and 2505.00024. ToolRL's system message has the content of theirs in our words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ...config.paths import shown
from ...errors import DataError
from ...rewards import tooln1, toolrl
from .. import tool_n1

Calls = list[dict[str, Any]]
HISTORY = "**Dialogue Records History**"
THOUGHT = "I should use the appropriate tool with proper parameters to respond to the user's need."
"""The thought of ToolRL's targets."""
SYSTEM = """You are a helpful dialogue assistant that answers in several turns and can call tools. \
Decide in each turn whether tools are needed, and reply.

**Available Tools**
{tools}

**Steps for Each Turn**
1. **Think:** recall what was said and what is wanted.
2. **Decide on Tool Usage:** if a tool is of use, name it and its parameters.
3. **Respond Appropriately:** if a reply is due, write one that fits the dialogue.

**Output Format**
```plaintext
<think> Your thoughts </think>
<tool_call>
{{"name": "Tool name", "parameters": {{"Parameter name": "Value", "...": "..."}}}}
{{"name": "...", "parameters": {{"...": "..."}}}}
</tool_call>
<response> Your reply </response>
```

**Important Notes**
1. Always think, in <think>. Then give at least one of <tool_call> and <response>.
2. Several calls may be made in one <tool_call>, each a JSON object on a line of its own \
with "name" and "parameters"; without parameters an empty object.
3. Look at the records of the dialogue: what the user said, earlier calls and replies, \
and what tools returned, in <obs>."""
_OFFERED = re.compile(
    r"^\d+\. Name: (?P<name>[^\n]*)\nDescription: (?P<description>[\s\S]*?)\nParameters:"
    r" (?P<parameters>\{[^\n]*\})[ ]*$",
    re.MULTILINE,
)
_SAID = re.compile(r"<(user|obs)>(.*?)</\1>", re.DOTALL)
_LISTED = re.compile(r"<tools>\n(.*?)\n</tools>", re.DOTALL)
_RESPONSE = re.compile(r"<response>(.*?)</response>", re.DOTALL)
_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)


def form_of(label: str) -> Literal["toolrl", "tooln1"] | None:
    """Return whose label this is; None if it is neither's."""
    if any(tag in label for tag in ("<think>", "<tool_call>", "<response>")):
        return "toolrl"
    try:
        tooln1.gold_calls(label)
    except ValueError:
        return None
    return "tooln1"


def to_toolrl(where: str, messages: Sequence[Mapping[str, Any]], label: str) -> tuple[list[dict[str, str]], str]:
    """Return the messages and target of a step of Tool-N1. Raises DataError if it calls nothing or has no tools."""
    calls = tooln1.gold_calls(label)
    if not calls:
        raise DataError(
            f"{where} calls nothing, and ToolRL's target is then the text of a reply, which the row does not have."
            " Remove the row."
        )
    listed = _LISTED.search(_system(messages))
    if listed is None:
        raise DataError(
            f"{where}: its system message has no <tools> with a JSON object per line,"
            f" which ToolRL's is made of. {_KEEP}"
        )
    offered = [_tool(where, line) for line in listed[1].split("\n")]
    tools = "\n".join(
        f"{i}. Name: {tool['name']}\nDescription: {tool.get('description') or ''}\nParameters:"
        f" {json.dumps(tool.get('parameters') or {}, ensure_ascii=False)}"
        for i, tool in enumerate(offered, 1)
    )
    said = "".join(f"{_recorded(where, m)}\n" for m in messages if m["role"] != "system")
    try:
        target = f"<think> {THOUGHT} </think>\n{_block(calls)}"
    except ValueError as error:
        raise DataError(f"{where}: {error}. Remove the row.") from None
    system = {"role": "system", "content": SYSTEM.format(tools=tools)}
    return [system, {"role": "user", "content": f"{HISTORY}\n{said}"}], target


def to_tooln1(where: str, messages: Sequence[Mapping[str, Any]], target: str) -> dict[str, str]:
    """Return the raw row of Tool-N1 for a step of ToolRL. A target without calls calls nothing.

    Raises:
        DataError: Its tools or its calls cannot be read.
    """
    user_text = next((m["content"] for m in messages if m["role"] == "user"), "")
    if len([m for m in messages if m["role"] != "system"]) != 1 or not str(user_text).lstrip().startswith(HISTORY):
        raise DataError(
            f"{where}: its prompt is not one user message that starts with {HISTORY!r}, as ToolRL's is. {_KEEP}"
        )
    tools = []
    for tool in _OFFERED.finditer(_system(messages)):
        try:
            parameters = json.loads(tool["parameters"])
        except (ValueError, RecursionError):
            raise DataError(
                f"{where}: the parameters of tool {tool['name']!r} are {shown(tool['parameters'], 80)}, no JSON"
                f" object. {_KEEP}"
            ) from None
        tools.append(
            {"name": tool["name"].strip(), "description": tool["description"].strip(), "parameters": parameters}
        )
    if not tools:
        raise DataError(
            f'{where}: its system message has no tools as "1. Name: ...", "Description: ...", "Parameters: {{...}}", as'
            f" ToolRL lists them. {_KEEP}"
        )
    try:
        row = {
            "tools": tools,
            "conversations": _conversation(str(user_text).partition(HISTORY)[2]),
            "answer": _arguments(target),
        }
    except ValueError as error:
        raise DataError(f"{where}: {error}. Correct or remove the row.") from None
    return {
        **{name: json.dumps(value, ensure_ascii=False) for name, value in row.items()},
        "raw_system": tool_n1.EXPERT,
    }


_KEEP = "Convert it to jsonl or verl, which keep the prompt as it is, or remove the row."


def _system(messages: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(str(m["content"]) for m in messages if m["role"] == "system")


def _tool(where: str, line: str) -> dict[str, Any]:
    try:
        tool = json.loads(line)
    except (ValueError, RecursionError):
        tool = None
    tool = tool.get("function", tool) if isinstance(tool, dict) else tool
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise DataError(
            f"{where}: in its <tools> {shown(line, 80)} is no function with a name, as a JSON object on a line."
            " Correct or remove the row."
        )
    return tool


def _recorded(where: str, message: Mapping[str, Any]) -> str:
    """Return a message of Tool-N1's dialogue in ToolRL's records. An assistant's list of calls is written as calls."""
    text = message["content"]
    if not isinstance(text, str):
        raise DataError(
            f"{where}: a message has calls beside its text, {shown(message, 80)},"
            f" where Tool-N1's has them as its text. {_KEEP}"
        )
    if message["role"] != "assistant":
        tag = "user" if message["role"] == "user" else "obs"
        return f"<{tag}> {text} </{tag}>"
    try:
        calls = tooln1.gold_calls(text)
        return _block(calls) if calls else f"<response> {text} </response>"
    except ValueError:
        return f"<response> {text} </response>"


def _block(calls: Calls) -> str:
    """Return ToolRL's block of calls. Raises ValueError for arguments that are not an object."""
    for i, call in enumerate(calls, 1):
        if not isinstance(call["arguments"], dict):
            raise ValueError(
                f"the arguments of call {i} are {shown(call['arguments'], 80)}, no object as ToolRL's parameters are"
            )
    lines = (json.dumps({"name": call["name"], "parameters": call["arguments"]}, ensure_ascii=False) for call in calls)
    return "\n".join(["<tool_call>", *lines, "</tool_call>"])


def _arguments(text: str) -> Calls:
    """Return the calls of ToolRL's text in Tool-N1's form. Raises ValueError."""
    return [{"name": call["name"], "arguments": call["parameters"]} for call in toolrl.gold_calls(text)]


def _conversation(records: str) -> list[dict[str, Any]]:
    """Return ToolRL's records as Tool-N1's turns: text between user and tools is the assistant's. Raises ValueError."""
    turns: list[dict[str, Any]] = []
    position = 0
    for record in _SAID.finditer(records):
        turns += _assistant(records[position : record.start()])
        turns.append({"from": "human" if record[1] == "user" else "observation", "value": record[2].strip()})
        position = record.end()
    return turns + _assistant(records[position:])


def _assistant(text: str) -> list[dict[str, Any]]:
    spoken = _THOUGHT.sub("", text).strip()
    if not spoken:
        return []
    turns: list[dict[str, Any]] = []
    if "<tool_call>" in spoken:
        turns.append({"from": "function_call", "value": _arguments(spoken)})
    reply = _RESPONSE.search(spoken)
    if reply is not None or not turns:
        turns.append({"from": "gpt", "value": reply[1].strip() if reply else spoken})
    return turns
