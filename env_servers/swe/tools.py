"""The three tools of OpenHands' CodeAct agent as SkyRL-v0 has them: their schemas, and calls checked against them.

Arguments may come as texts, as the function-call text has them ("[1, 20]", "true", "7"), or as JSON. What is wrong is a
BadCall whose text is for the model.
"""

from __future__ import annotations

import json
from typing import Any

COMMANDS = ("view", "create", "str_replace", "insert", "undo_edit")
_STRING = {"type": "string"}
_FLAG = {"type": "string", "enum": ["true", "false"]}


def _tool(name: str, description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    _tool(
        "execute_bash",
        "Execute a bash command in one session that keeps its directory and variables. A command that runs on when its"
        " time is up has exit code -1: send an empty command for more of its output, text for its stdin with is_input"
        " true, or C-c with is_input true to end it.",
        {
            "command": {**_STRING, "description": "The command to execute; empty for more output of one that runs on."},
            "is_input": {
                **_FLAG,
                "description": "If true, the command is input to the running process. Default is false.",
            },
        },
        ["command"],
    ),
    _tool(
        "str_replace_editor",
        "View, create and edit plain-text files. str_replace needs old_str exactly and only once in the file;"
        " insert puts new_str AFTER insert_line.",
        {
            "command": {**_STRING, "enum": list(COMMANDS), "description": "What to do."},
            "path": {**_STRING, "description": "Absolute path to the file or directory."},
            "file_text": {**_STRING, "description": "Required by create: the content of the file."},
            "old_str": {**_STRING, "description": "Required by str_replace: the text to replace."},
            "new_str": {**_STRING, "description": "The text to put in its place, or to insert."},
            "insert_line": {"type": "integer", "description": "Required by insert: the line after which new_str goes."},
            "view_range": {
                "type": "array",
                "items": {"type": "integer"},
                "description": "Optional for view: first and last line, -1 for the end.",
            },
        },
        ["command", "path"],
    ),
    _tool("finish", "Finish the interaction when the task is complete.", {}, []),
]
_PARAMETERS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
_OF_COMMAND: dict[str, dict[str, bool]] = {
    "view": {"view_range": False},
    "create": {"file_text": True},
    "str_replace": {"old_str": True, "new_str": False},
    "insert": {"insert_line": True, "new_str": True},
    "undo_edit": {},
}
"""Command -> its parameters besides command and path, and whether it needs them."""


class BadCall(Exception):
    """A call that no tool takes; `kind` is unknown_function or bad_call."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def checked(name: object, arguments: object) -> dict[str, Any]:
    """The arguments with their right types; those that an editor command does not take are left out. Raises BadCall."""
    if not isinstance(name, str) or name not in _PARAMETERS:
        raise BadCall("unknown_function", f"There is no function {name!r}. There are {', '.join(_PARAMETERS)}.")
    if not isinstance(arguments, dict):
        raise BadCall(
            "bad_call", f"{name}: arguments are {type(arguments).__name__}, not an object of names and values."
        )
    properties = _PARAMETERS[name]["properties"]
    required = list(_PARAMETERS[name]["required"])
    # `cut`: said by a protocol whose turns are used up. Other fields (a message, outputs) are some
    # versions', and change nothing
    if name == "finish":
        return {"cut": str(arguments.get("cut", "")).lower() == "true"}
    if strange := sorted(set(map(str, arguments)) - set(properties)):
        raise BadCall(
            "bad_call", f"{name}: there is no parameter {', '.join(strange)}. There are {', '.join(properties)}."
        )
    values = {key: _typed(name, key, value, properties[key]) for key, value in arguments.items() if value is not None}
    if name == "str_replace_editor" and "command" in values:
        own = _OF_COMMAND[values["command"]]
        required += [key for key, needed in own.items() if needed]
        values = {key: value for key, value in values.items() if key in ("command", "path") or key in own}
    if missing := [key for key in required if key not in values]:
        raise BadCall("bad_call", f"{name}: the parameter {', '.join(missing)} is missing.")
    return values


def _typed(name: str, key: str, value: Any, schema: dict[str, Any]) -> Any:
    if key == "is_input":
        if str(value).lower() not in ("true", "false"):
            raise BadCall("bad_call", f"{name}: is_input is {str(value)[:40]!r}. Send true or false.")
        return str(value).lower() == "true"
    if schema["type"] == "string":
        if not isinstance(value, str):
            raise BadCall("bad_call", f"{name}: {key} is {type(value).__name__}, not a string.")
        if "enum" in schema and value not in schema["enum"]:
            raise BadCall("bad_call", f"{name}: {key} is {value[:40]!r}. It is one of {', '.join(schema['enum'])}.")
        return value
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise BadCall("bad_call", f"{name}: {key} is {value[:40]!r}, no {schema['type']}.") from None
    if schema["type"] == "integer" and type(value) is int:
        return value
    if schema["type"] == "array" and isinstance(value, list) and len(value) == 2 and all(type(v) is int for v in value):
        return value
    wanted = "an integer" if schema["type"] == "integer" else "a list of two integers"
    raise BadCall("bad_call", f"{name}: {key} is {str(value)[:40]!r}, not {wanted}.")
