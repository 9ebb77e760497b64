"""The three tools of OpenHands' CodeAct agent as SkyRL-v0 has them: their schemas, and the check of calls.

Arguments may be texts, as in a function call written as text ("[1, 20]", "true", "7"), or JSON. A wrong call is a
BadCall, whose text the model reads.
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
_COMMAND_PARAMETERS: dict[str, dict[str, bool]] = {
    "view": {"view_range": False},
    "create": {"file_text": True},
    "str_replace": {"old_str": True, "new_str": False},
    "insert": {"insert_line": True, "new_str": True},
    "undo_edit": {},
}
"""Parameters of each command of the editor besides command and path, and whether they are required."""


class BadCall(Exception):
    """Raised for a call that no tool accepts. `kind` is unknown_function or bad_call."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def checked(name: object, arguments: object) -> dict[str, Any]:
    """Return the arguments of a call with the right types, without those that an editor command does not take. Raises
    BadCall."""
    if not isinstance(name, str) or name not in _PARAMETERS:
        raise BadCall("unknown_function", f"There is no function {name!r}. There are {', '.join(_PARAMETERS)}.")
    if not isinstance(arguments, dict):
        raise BadCall(
            "bad_call", f"{name}: arguments are {type(arguments).__name__}, not an object of names and values."
        )
    properties = _PARAMETERS[name]["properties"]
    required = list(_PARAMETERS[name]["required"])
    # A protocol whose turns are used up sends `cut`. Some versions send other fields (a message, outputs), which are
    # ignored.
    if name == "finish":
        return {"cut": str(arguments.get("cut", "")).lower() == "true"}
    if unknown := sorted(set(map(str, arguments)) - set(properties)):
        raise BadCall(
            "bad_call", f"{name}: there is no parameter {', '.join(unknown)}. There are {', '.join(properties)}."
        )
    values = {key: _typed(name, key, value, properties[key]) for key, value in arguments.items() if value is not None}
    if name == "str_replace_editor" and "command" in values:
        parameters = _COMMAND_PARAMETERS[values["command"]]
        required += [key for key, is_required in parameters.items() if is_required]
        values = {key: value for key, value in values.items() if key in ("command", "path") or key in parameters}
    if missing := [key for key in required if key not in values]:
        raise BadCall("bad_call", f"{name}: the parameter {', '.join(missing)} is missing.")
    return values


def _typed(name: str, key: str, value: Any, schema: dict[str, Any]) -> Any:
    """Return an argument with the type of its schema. Raises BadCall."""
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
    if (
        schema["type"] == "array"
        and isinstance(value, list)
        and len(value) == 2
        and all(type(number) is int for number in value)
    ):
        return value
    expected = "an integer" if schema["type"] == "integer" else "a list of two integers"
    raise BadCall("bad_call", f"{name}: {key} is {str(value)[:40]!r}, not {expected}.")
