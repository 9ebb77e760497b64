"""Chats in the forms of public data sets: lists of messages, JSON text of such a list, ShareGPT's turns.

    '[{"role": "user", "content": "1+1?"}]'      ->  [{"role": "user", "content": "1+1?"}]
    [{"from": "human", "value": "1+1?"}]         ->  the same
    [{"role": "user", "content": [{"type": "text", "text": "1+1?"}]}]  ->  the same

A value that is not a chat is returned as it is, because a problem may be JSON text too.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from ..config.paths import shown
from ..errors import DataError
from ..rewards.checking.json_value import json_or_none

SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}
LISTS = ("messages", "conversations", "conversation")
"""Keys of an object that holds only a chat."""


def chat_of(value: Any) -> Any:
    """Return a chat as a list of messages; a value that is not a chat as it is."""
    parsed = _parsed(value) if isinstance(value, str) else value
    if isinstance(parsed, Mapping) and len(parsed) == 1 and next(iter(parsed)) in LISTS:
        parsed = next(iter(parsed.values()))
    if isinstance(parsed, Mapping) and _is_message(parsed):
        parsed = [parsed]
    if not isinstance(parsed, list) or not parsed or not all(_is_message(part) for part in parsed):
        return value
    return [_message(part) for part in parsed]


def question_of(where: str, name: str, value: Any) -> Any:
    """Return the question of a chat: its messages without the assistant's last reply, which would be the answer.

    Raises:
        DataError: Nothing is left that asks.
    """
    chat = chat_of(value)
    if not isinstance(chat, list):
        return chat
    while chat and isinstance(chat[-1], Mapping) and chat[-1].get("role") == "assistant":
        chat = chat[:-1]
    if not chat:
        raise DataError(f"{where}: {name} = {shown(value, 60)} asks nothing. Correct or remove the row.")
    return chat


def _parsed(text: str) -> Any:
    """Return a text as JSON, or as Python's own notation (what `str` makes of a list); the text itself if it is
    neither."""
    stripped = text.strip()
    if not stripped.startswith(("[", "{")) or not stripped.endswith(("]", "}")):
        return text
    if not any(key in stripped for key in ("role", "from")):
        return text
    value = json_or_none(stripped)
    if value is not None:
        return value
    try:
        return ast.literal_eval(stripped)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _is_message(part: Any) -> bool:
    if not isinstance(part, Mapping):
        return False
    return (isinstance(part.get("role"), str) and ("content" in part or "tool_calls" in part)) or (
        isinstance(part.get("from"), str) and "value" in part
    )


def _message(part: Mapping[str, Any]) -> dict[str, Any]:
    if "role" not in part:
        return {"role": SHAREGPT_ROLES.get(part["from"], part["from"]), "content": part["value"]}
    content = part.get("content")
    if isinstance(content, list) and content and all(_is_text(piece) for piece in content):
        return {**part, "content": "".join(piece["text"] for piece in content)}
    return dict(part)


def _is_text(piece: Any) -> bool:
    """Return True if a part of a message's content is text. A picture is not, and its row is refused."""
    return isinstance(piece, Mapping) and piece.get("type") == "text" and isinstance(piece.get("text"), str)
