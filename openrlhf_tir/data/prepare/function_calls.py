"""Turn rows of xLAM, Hammer and ToolACE into Tool-N1's raw rows, one for each call that a model has to make.

    xlam, hammer   {"query", "tools": JSON, "answers": JSON}
                   one row; Hammer's irrelevance set has answers []
    toolace        {"system": text with the tools as JSON, "conversations": [...]}
                   a row for each turn of the assistant that calls, with the turns before it as its history

    -> {"tools": JSON, "conversations": JSON, "answer": JSON}, from which data/tool_n1.py makes a prompt

As in the method (arXiv 2505.00024, appendix), a row is left out if its calls cannot be read or name a function that is
not offered: `left_out` counts these by reason. They are properties of the sources, not mistakes of the file. A row
without the fields is a DataError.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...errors import DataError
from ..fields import field, json_list, kind, names_of, text_of
from ..tool_n1 import ROLES
from .call_text import looks_like_calls, read_calls

Raw = dict[str, Any]
UNREADABLE = "the calls cannot be read"
NOT_OFFERED = "a call of a function that is not offered"
NO_CALL = "no turn of the assistant calls a function"


def xlam(where: str, row: Mapping[str, Any], left_out: Counter[str]) -> Iterator[Raw]:
    """Yield the raw row of a row of xLAM or Hammer."""
    query = text_of(where, row, "query")
    yield from _offered(
        where,
        json_list(where, row, "tools"),
        [{"from": "human", "value": query}],
        json_list(where, row, "answers"),
        left_out,
    )


def toolace(where: str, row: Mapping[str, Any], left_out: Counter[str]) -> Iterator[Raw]:
    """Yield a raw row for each turn of a row of ToolACE that calls.

    Raises:
        DataError: A turn of the conversation has another form.
    """
    tools = _tools_in(where, text_of(where, row, "system"))
    history: list[dict[str, Any]] = []
    called = False
    for number, turn in enumerate(field(where, row, "conversations", list, "a list of turns")):
        role = ROLES.get(str(turn.get("from", turn.get("role")))) if isinstance(turn, Mapping) else None
        text = turn.get("value", turn.get("content")) if role else None
        if not isinstance(text, str):
            raise DataError(
                f'{where}: conversations[{number}] is {kind(turn)}, not {{"from": "user" | "assistant" |'
                ' "tool", "value": text}. Correct or remove the row.'
            )
        if role == "assistant" and looks_like_calls(text):
            called = True
            try:
                calls = read_calls(text)
            except ValueError:
                left_out[UNREADABLE] += 1
                history.append({"from": "gpt", "value": text})
                continue
            if history:
                yield from _offered(where, tools, history, calls, left_out)
            history.append({"from": "function_call", "value": calls})
        else:
            history.append(
                {"from": {"user": "human", "assistant": "gpt", "tool": "observation"}[str(role)], "value": text}
            )
    if not called:
        left_out[NO_CALL] += 1


def _tools_in(where: str, system: str) -> list[Any]:
    """Return the first list of objects with names in the text."""
    position = system.find("[")
    while position >= 0:
        try:
            value, _ = json.JSONDecoder().raw_decode(system, position)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, list) and value and all(isinstance(tool, dict) and "name" in tool for tool in value):
            return value
        position = system.find("[", position + 1)
    raise DataError(
        f"{where}: system is {kind(system)}, without a JSON list of tools that have names. Correct or remove the row."
    )


def _offered(
    where: str, tools: Sequence[Any], history: Sequence[Any], calls: Sequence[Any], left_out: Counter[str]
) -> Iterator[Raw]:
    names = names_of(where, tools)
    if not all(
        isinstance(call, Mapping) and isinstance(call.get("name"), str) and "arguments" in call for call in calls
    ):
        left_out[UNREADABLE] += 1
    elif not all(call["name"] in names for call in calls):
        left_out[NOT_OFFERED] += 1
    else:
        yield {
            name: json.dumps(value, ensure_ascii=False)
            for name, value in (("tools", tools), ("conversations", history), ("answer", calls))
        }


SOURCES: dict[str, Callable[[str, Mapping[str, Any], Counter[str]], Iterator[Raw]]] = {
    "hammer": xlam,
    "toolace": toolace,
    "xlam": xlam,
}
"""Schema -> a function that yields Tool-N1's raw rows of one of its rows."""
