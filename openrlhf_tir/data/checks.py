"""Checks of a row's values when they are read, for what the run will do with them later.

A label is sent to verifiers, `meta` to environment servers, both as JSON in UTF-8; a prompt goes to a tokenizer. A
value that one of these cannot take would otherwise be a fault in the middle of the run.
"""

from __future__ import annotations

import math
from typing import Any

from ..config.paths import shown
from ..errors import DataError

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython", "observation")
"""Roles of chat messages that chat templates know. Most templates silently leave out a message of another role."""
MAX_DEPTH = 64
"""Maximum nesting of a value. JSON writers recurse, and no data set needs this much."""


def json_value(value: Any, where: str, name: str, depth: int = 0) -> Any:
    """Return `value` if it can be written as JSON in UTF-8. `name` is the column, or a path in it.

    Raises:
        DataError: It cannot. The message names the part.
    """
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
                    f"{where}: {name} = {value} is not a number that JSON can hold."
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
    """Return `value` if UTF-8 can hold it. Raises DataError for lone surrogates, which JSON's escapes allow."""
    try:
        value.encode()
    except UnicodeEncodeError as e:
        raise DataError(
            f"{where}: {name} has the lone surrogate \\u{ord(value[e.start]):04x} at character {e.start + 1}, which"
            " UTF-8 cannot hold. Write the character itself, or remove it."
        ) from None
    return value


def messages(value: Any, where: str, name: str) -> Any:
    """Return a chat: a list of {"role": text, "content": text}, with content None only beside tool_calls. Raises
    DataError."""
    for i, message in enumerate(value):
        chat = isinstance(message, dict) and isinstance(message.get("role"), str)
        if not chat or not (
            isinstance(message.get("content"), str) or (message.get("content") is None and message.get("tool_calls"))
        ):
            raise DataError(
                f"{where}: {name}[{i}] = {shown(message, 120)} is not a chat message."
                ' Write {"role": "user", "content": "..."} with text in both.'
            )
        if message["role"] not in ROLES:
            raise DataError(
                f"{where}: {name}[{i}] has the role {shown(message['role'], 60)}, which no chat template knows."
                f" Write one of {', '.join(ROLES)}."
            )
    return json_value(value, where, name)


def learnable(message: Any, where: str, name: str) -> None:
    """Check that a message of the assistant that is learned says or calls something. Raises DataError."""
    if not any(
        message.get(part) and str(message[part]).strip() for part in ("content", "tool_calls", "reasoning_content")
    ):
        raise DataError(
            f"{where}: {name} is an assistant's message without text: there is nothing to learn."
            " Fill it in or remove the row."
        )
