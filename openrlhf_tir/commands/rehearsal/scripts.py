"""Scripts: what a model might write to a problem, one list of turns for each episode.

How a call is written is found by asking the turn protocol: forms of calls, and its stop strings, are shown to it until
it takes one for a call. So a protocol of the user's own is found out like ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...config.environments import Environment
from ...envs.check.actions import actions_for
from ...episodes.turns import Call, GoOn, Reject
from ...errors import TurnError
from ...types import Completion, Task
from ...user_code.failures import Overrun

FORMS = (
    "```python\n{action}\n```\n",
    "<code>\n```python\n{action}\n```\n</code>",
    "```python\n{action}\n```\n```output",
    "<code>{action}</code>",
    "<python>{action}</python>",
    "<search>{action}</search>",
    "<tool>{action}</tool>",
    '<tool>\n[{{"name": {name}, "arguments": {arguments}}}]\n</tool>',
    "<tool_call>{action}</tool_call>",
    '<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>',
    '{{"name": {name}, "arguments": {arguments}}}',
    '[{{"name": {name}, "arguments": {arguments}}}]',
    "<function={plain_name}>\n</function>",
    "{action}",
    "{action}\n",
)
"""Ways in which the methods that we know write a call."""
BROKEN_FORMS = (
    "<tool_call>{not json</tool_call>",
    "<tool>{not json</tool>",
    "<function=>",
    "```python\n```\n",
    "<search></search>",
)
"""What looks like a call, and cannot be read."""
MAX_SEGMENTS = 4
"""Stops after which a form is given up: a protocol may stop at the opening and at the closing of a call."""
MAX_CALLS = 4
"""Forms of calls that are played."""
Complete = Callable[[str, Sequence[str]], tuple[Completion, str]]
"""(text, stop strings) -> what an engine returns for it, and the text that is left behind a stop string."""
WRONG = "0.123 wrong"
"""No problem's answer."""


@dataclass(frozen=True, slots=True)
class Script:
    """`title`: what the episode is about; `turns`: what the model writes, one after the other."""

    title: str
    turns: list[str]


def scripts_of(
    task: Task,
    e: Environment,
    protocol: Callable[[], Any] | None,
    complete: Complete,
    most: int,
) -> list[Script]:
    """Return the episodes to play on a task.

    Args:
        protocol: Makes the environment's protocol; None where an agent writes the responses.
        complete: What an engine returns.
        most: Tokens that a response may have.
    """
    long = "and so on " * (2 + most)
    answer, wrong = (_answer(text, complete, most) for text in (task.label, WRONG))
    found = [
        Script("the right answer", [answer]),
        Script("the label alone", [task.label]),
        Script("a wrong answer", [wrong]),
        Script("another wrong answer, a bare word", ["no"]),
        Script("a number", ["7"]),
        Script("an empty response", [""]),
        Script("a response that is cut", [long]),
        Script("characters of many kinds", ["é 中文 \\ {} %s $x$ <b> \U0001f600 \x00 1e999 nan"]),
    ]
    calls = _calls(task, e, protocol, complete) if protocol else []
    for call in calls:
        found.append(Script(f"a call, then the right answer: {_short(call)}", [call, answer]))
    if calls:
        # the label is the first action: in a game it may win, and nothing would follow it
        last_first = calls[::-1]
        turns = [last_first[i % len(calls)] for i in range(max(2, min(e.env.max_calls, 8)))]
        found.append(Script("calls until they are used up, then a wrong answer", [*turns, wrong]))
        found.append(Script("two calls of the same kind, then nothing", [calls[-1], calls[-1], ""]))
        found.append(Script("a call, then a response that is cut", [calls[0], long]))
    broken = _broken(protocol, complete) if protocol else []
    found += [Script(f"a call that cannot be read: {_short(text)}", [text, answer]) for text in broken]
    return found


def short_scripts_of(task: Task, complete: Complete, most: int) -> list[Script]:
    """Return the episodes for further rows: a right answer and a wrong one."""
    right, wrong = (_answer(text, complete, most) for text in (task.label, WRONG))
    return [Script("the right answer", [right]), Script("a wrong answer", [wrong])]


def _answer(text: str, complete: Complete, most: int) -> str:
    """Return an answer in the forms that rewards look for, or in one that a short response has room for."""
    forms = (
        f"<think>\nLet me see.\n</think>\n<answer>\\boxed{{{text}}}</answer>",
        f"<answer>\\boxed{{{text}}}</answer>",
        f"\\boxed{{{text}}}",
    )
    return next((form for form in forms if len(complete(form, ())[0].token_ids) <= most), text)


def _actions(task: Task, e: Environment) -> list[str]:
    """What may be an action of the environment: known ones of ours, the label, and plain texts."""
    known = actions_for(e.serves) if not e.env.file else actions_for("")
    first = [known.valid, *(action for action in (known.failing,) if action)]
    plain = [task.label, "3", "hello", ""]
    return list(dict.fromkeys([*plain, *first] if e.env.file else [*first, *plain]))


def _calls(
    task: Task,
    e: Environment,
    protocol: Callable[[], Any],
    complete: Complete,
) -> list[str]:
    """Return texts that the protocol takes for calls, of different actions where there are any."""
    if e.env.max_calls == 0:
        return []
    texts: list[str] = []
    stops = _stops(protocol)
    closings = [stop for stop in stops if stop.startswith("</")]
    for action in _actions(task, e):
        fields = _named(action, e.env.tools)
        for form in FORMS:
            texts.append(form.format(action=action, **fields))
        texts += [f"<{closing[2:]}{action}{closing}" for closing in closings]
        texts += [f"{action}{stop}" for stop in stops]
    texts += [f"I try {stop}" for stop in stops]
    found: dict[str, str] = {}
    for text in texts:
        try:
            read = _read(protocol, complete, text)
        except TurnError:
            break
        if isinstance(read, Call):
            found.setdefault(read.action, text)
        if len(found) >= MAX_CALLS:
            break
    return list(found.values())


def _broken(protocol: Callable[[], Any], complete: Complete) -> list[str]:
    texts = []
    for text in BROKEN_FORMS:
        try:
            if isinstance(_read(protocol, complete, text), Reject):
                texts.append(text)
        except TurnError:
            break
    return texts[:2]


def _stops(protocol: Callable[[], Any]) -> Sequence[str]:
    try:
        return tuple(protocol().stops)
    except Exception:  # the episodes tell of it
        return ()


def _read(protocol: Callable[[], Any], complete: Complete, text: str) -> Any:
    """Return what a fresh protocol makes of a text; None if it asks for nothing, or fails, which the episodes tell.

    Raises:
        TurnError: The protocol does not end: nobody wants to wait for that again and again.
    """
    try:
        fresh = protocol()
        for _ in range(MAX_SEGMENTS):
            completion, text = complete(text, tuple(fresh.stops))
            read = fresh.advance(completion)
            if isinstance(read, Call | Reject):
                return read
            if not isinstance(read, GoOn) or not text:
                return None
    except TurnError as e:
        if isinstance(e.__cause__, Overrun):
            raise
        return None
    except Exception:
        return None
    return None


def _named(action: str, tools: Sequence[Any]) -> dict[str, str]:
    """Return a call of the first tool that the environment has, with arguments of the types that its schema names."""
    function: Any = tools[0].get("function", tools[0]) if tools else {}
    properties = (function.get("parameters") or {}).get("properties") or {}
    by_type: dict[Any, Any] = {"integer": 3, "number": 1.5, "boolean": True, "array": [], "object": {}}
    arguments = {key: by_type.get((schema or {}).get("type"), action) for key, schema in properties.items()}
    name = function.get("name", "python")
    return {
        "name": json.dumps(name),
        "plain_name": name,
        "arguments": json.dumps(arguments or {"code": action}),
    }


def _short(text: str) -> str:
    line = repr(text)
    return line if len(line) <= 40 else f"{line[:37]}..."
