"""Find what a chat template leaves out of the messages that it is given.

A template is a program of the model's author. Some never write `tool_calls` (a message that only calls becomes empty),
some drop `reasoning_content`, or cut the text before </think>, or ignore the role "tool". They do so silently. So the
parts of the messages are looked for in the rendered text, ignoring white space and the escapes of JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..inert import MARK
from ..rewards.checking.json_value import json_or_none

if TYPE_CHECKING:
    from .chat_template import ChatTemplate

REASONING = ("reasoning_content", "reasoning", "thinking")
"""Fields of an assistant's message that hold its thoughts, by different conventions."""
OPENED_CHARS = 200
"""Characters at the end of a generation prompt in which a message may begin."""
_SPACE = re.compile(rf"[\s{MARK}]+")
_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)


def lost_in_context(messages: Sequence[Mapping[str, Any]], rendered: str, *, first: int = 0) -> str | None:
    """Return a sentence about the first message whose content or calls are not in `rendered`; None if all are.

    Many templates leave out the thoughts of earlier turns on purpose, so these are not looked for. `first` is the
    number of the first message in its conversation.
    """
    bare = _bare(rendered)
    for i, message in enumerate(messages, first):
        lost = _lost_calls(message, bare) or _lost_content(message, bare, thoughts=False)
        if lost:
            return f"messages[{i}] ({message.get('role')}): {lost}"
    return None


def hidden_in_context(
    template: ChatTemplate, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, first: int = 0
) -> str | None:
    """Return a sentence about the first message from `first` on that the template does not show, whatever it says."""
    for i in range(first, len(messages)):
        if not template.shows(messages, tools, i):
            return f"messages[{i}] ({messages[i].get('role')}): its content or its call is left out"
    return None


def lost_in_response(message: Mapping[str, Any], rendered: str, before: str = "") -> str | None:
    """Return what is missing of an assistant's message that is rendered to be learned; None if nothing is.

    The text `before` it ends with the generation prompt, which may hold the first words of the message, as <think>.
    """
    bare = _bare(rendered)
    opened = _bare(before[-OPENED_CHARS:])
    if lost := _lost_calls(message, bare) or _lost_content(message, bare, thoughts=True, opened=opened):
        return lost
    thought = reasoning_of(message)
    if thought and not _is_in(thought, bare):
        return f"its {next(name for name in REASONING if message.get(name))} is left out"
    return None


def reasoning_of(message: Mapping[str, Any]) -> str:
    """Return the thoughts that a message has in a separate field, or ""."""
    thoughts = next((message[name] for name in REASONING if message.get(name)), "")
    return thoughts if isinstance(thoughts, str) else ""


def _lost_calls(message: Mapping[str, Any], bare: str) -> str | None:
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            continue
        name = function.get("name", "")
        if isinstance(name, str) and name and not _is_in(name, bare):
            return f"its call of {name} is left out"
        if not all(_is_in(leaf, bare) for leaf in _leaves(function.get("arguments"))):
            return f"arguments of its call of {name} are left out"
    return None


def lost_tools(tools: Sequence[Mapping[str, Any]], rendered: str) -> list[str]:
    """Return the names of tools that are not in `rendered`."""
    bare = _bare(rendered)
    functions = [tool.get("function", tool) for tool in tools]
    names = [str(function.get("name", "")) for function in functions if isinstance(function, Mapping)]
    return [name for name in names if not _is_in(name, bare)]


def _lost_content(message: Mapping[str, Any], bare: str, *, thoughts: bool, opened: str = "") -> str | None:
    for text in _texts(message.get("content")):
        if _is_in(text, bare) or _is_in(_behind(opened, text), bare):
            continue
        spoken = _THOUGHT.sub("", text).rpartition("</think>")[2]
        if spoken != text and _is_in(spoken, bare):
            if thoughts:
                return "what it thinks, up to </think>, is left out"
            continue
        return "its content is left out"
    return None


def _behind(opened: str, text: str) -> str:
    """Return `text` without white space, and without the beginning with which `opened` ends; not all of it."""
    bare = _bare(text)
    lengths = range(min(len(opened), len(bare) - 1), 0, -1)
    return bare[next((length for length in lengths if opened.endswith(bare[:length])), 0) :]


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield from (p["text"] for p in content if isinstance(p, Mapping) and isinstance(p.get("text"), str))


def _leaves(value: Any) -> Iterator[str]:
    """Yield the texts and numbers in arguments. Texts that are JSON are parsed first."""
    if isinstance(value, str):
        inner = json_or_none(value)
        if isinstance(inner, dict | list):
            yield from _leaves(inner)
        else:
            yield value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield str(name)
            yield from _leaves(part)
    elif isinstance(value, list):
        for part in value:
            yield from _leaves(part)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield json.dumps(value)


def _is_in(text: str, bare: str) -> bool:
    """Return True if a rendered text without white space contains `text`, as it is or as JSON escapes it."""
    spellings = {text, json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1]}
    return any(_bare(spelling) in bare for spelling in spellings)


def _bare(text: str) -> str:
    return _SPACE.sub("", text)
