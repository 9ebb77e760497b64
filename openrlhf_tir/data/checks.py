"""Checks of a row's values: what the run will need of them later, asked when they are read.

A label is sent to verifiers, `meta` to environment servers, both as JSON in UTF-8; a prompt goes to a tokenizer. What
none of these can take would otherwise be a fault in the middle of the run.
"""

from __future__ import annotations

import math
from typing import Any

from ..config.paths import shown
from ..errors import DataError

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython", "observation")
"""The roles of chat messages that the chat templates of models know. Most templates leave a message of another role
out, without a word."""
MAX_DEPTH = 64
"""Nesting of a value. JSON writers recurse; no data set needs this much."""


def json_value(value: Any, where: str, name: str, depth: int = 0) -> Any:
    """`value` when it can be written as JSON in UTF-8. Raises DataError that says which part cannot; `name` is the
    column, or a path in it."""
    match value:
        case None | bool():
            pass
        case str():
            text(value, where, name)
        case int():
            if not -(2**63) <= value < 2**63:
                raise DataError(f"{where}: {name} = {shown(value, 60)} does not fit into 64 bits. Write it as text.")
        case float():
            if not math.isfinite(value):
                raise DataError(
                    f"{where}: {name} = {value} is no number that JSON can hold."
                    " Write null or a finite number, or remove the row."
                )
        case dict() | list() | tuple() if depth == MAX_DEPTH:
            raise DataError(f"{where}: {name} is nested more than {MAX_DEPTH} deep. Flatten it.")
        case dict():
            for key, part in value.items():
                if not isinstance(key, str):
                    raise DataError(
                        f"{where}: {name} has the key {shown(key, 60)} of type {type(key).__name__}."
                        " Use text keys, as JSON does."
                    )
                text(key, where, f"a key of {name}")
                json_value(part, where, f"{name}.{shown(key, 60).strip(chr(39))}", depth + 1)
        case list() | tuple():
            for i, part in enumerate(value):
                json_value(part, where, f"{name}[{i}]", depth + 1)
        case _:
            raise DataError(
                f"{where}: {name} = {shown(value, 60)} is a {type(value).__name__}, which JSON cannot hold."
                " Convert the column to text or numbers."
            )
    return value


def text(value: str, where: str, name: str) -> str:
    """`value` when UTF-8 can hold it. Raises DataError for lone surrogates, which JSON's escapes let through."""
    try:
        value.encode()
    except UnicodeEncodeError as e:
        raise DataError(
            f"{where}: {name} has the lone surrogate \\u{ord(value[e.start]):04x} at character {e.start + 1}, which"
            " UTF-8 cannot hold. Write the character itself, or remove it."
        ) from None
    return value


def messages(value: Any, where: str, name: str) -> Any:
    """A chat: a list of {"role": text, "content": text}, content None only beside tool_calls. Raises DataError."""
    for i, message in enumerate(value):
        chat = isinstance(message, dict) and isinstance(message.get("role"), str)
        if not chat or not (
            isinstance(message.get("content"), str) or (message.get("content") is None and message.get("tool_calls"))
        ):
            raise DataError(
                f"{where}: {name}[{i}] = {shown(message, 120)} is no chat message."
                ' Write {"role": "user", "content": "..."} with text in both.'
            )
        if message["role"] not in ROLES:
            raise DataError(
                f"{where}: {name}[{i}] has the role {shown(message['role'], 60)}, which no chat template knows."
                f" Write one of {', '.join(ROLES)}."
            )
    return json_value(value, where, name)


def learnable(message: Any, where: str, name: str) -> None:
    """A message of the assistant that is learned says or calls something. Raises DataError."""
    if not any(
        message.get(part) and str(message[part]).strip() for part in ("content", "tool_calls", "reasoning_content")
    ):
        raise DataError(
            f"{where}: {name} is an assistant's message without text: there is nothing to learn."
            " Fill it in or remove the row."
        )
