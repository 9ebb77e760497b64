"""What a model might write to a problem: one list of turns for each episode.

The form of a call is found by asking the turn protocol: it is shown known forms, and its own stop strings, until it
takes one for a call. So a user's protocol is explored like ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...config.environments import Environment
from ...errors import TurnError
from ...rollout.protocols import Call, GoOn, Reject
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
"""Forms of a call in the methods that we know."""
BROKEN_FORMS = (
    "<tool_call>{not json</tool_call>",
    "<tool>{not json</tool>",
    "<function=>",
    "```python\n```\n",
    "<search></search>",
)
"""Texts that look like a call but cannot be read."""
MAX_SEGMENTS = 4
"""Stops after which a form is given up: a protocol may stop at the opening and at the closing of a call."""
MAX_CALLS = 5
"""Forms of calls that are played."""
Complete = Callable[[str, Sequence[str]], tuple[Completion, str]]
"""(text, stop strings) -> what an engine returns for it, and the text that is left after the stop string."""
WRONG = "0.123 wrong"
"""An answer that is right for no problem."""


@dataclass(frozen=True, slots=True)
class Script:
    """One episode.

    Attributes:
        title: What the episode tests.
        turns: What the model writes, in order.
        wrong: True if it ends with an answer that is wrong, whatever the problem.
    """

    title: str
    turns: list[str]
    wrong: bool = False


def scripts_of(
    task: Task,
    environment: Environment,
    protocol: Callable[[], Any] | None,
    complete: Complete,
    max_tokens: int,
) -> list[Script]:
    """Return the episodes to play on a task.

    Args:
        task: The problem.
        environment: Its environment.
        protocol: Makes the environment's protocol; None if an agent writes the responses.
        complete: Returns what an engine would.
        max_tokens: Maximum number of tokens of a response.
    """
    long = "and so on " * (2 + max_tokens)
    answer, wrong = (_answer(text, complete, max_tokens) for text in (task.label, WRONG))
    scripts = [
        Script("the right answer", [answer]),
        Script("the label alone", [task.label]),
        Script("a wrong answer", [wrong], wrong=True),
        Script("another wrong answer, a bare word", ["no"], wrong=True),
        Script("a number", ["7"]),
        Script("an empty response", [""]),
        Script("a response that is cut", [long]),
        Script("characters of many kinds", ["é 中文 \\ {} %s $x$ <b> \U0001f600 \x00 1e999 nan"]),
    ]
    calls = _calls(task, environment, protocol, complete) if protocol else []
    for call in calls:
        scripts.append(Script(f"a call, then the right answer: {_short(call)}", [call, answer]))
    if calls:
        # The label is the first action. In a game it may win, and no call would follow it, so it comes last.
        reversed_calls = calls[::-1]
        turns = [reversed_calls[number % len(calls)] for number in range(max(2, min(environment.env.max_calls, 8)))]
        scripts.append(Script("calls until they are used up, then a wrong answer", [*turns, wrong]))
        scripts.append(Script("two calls of the same kind, then nothing", [calls[-1], calls[-1], ""]))
        scripts.append(Script("a call, then a response that is cut", [calls[0], long]))
    broken = _broken(protocol, complete) if protocol else []
    scripts += [Script(f"a call that cannot be read: {_short(text)}", [text, answer]) for text in broken]
    return scripts


def short_scripts_of(task: Task, complete: Complete, max_tokens: int) -> list[Script]:
    """Return the episodes for further rows: a right answer and a wrong one."""
    right, wrong = (_answer(text, complete, max_tokens) for text in (task.label, WRONG))
    return [Script("the right answer", [right]), Script("a wrong answer", [wrong], wrong=True)]


def _answer(text: str, complete: Complete, max_tokens: int) -> str:
    """Return an answer in the first form that rewards look for and that fits into a response."""
    forms = (
        f"<think>\nLet me see.\n</think>\n<answer>\\boxed{{{text}}}</answer>",
        f"<answer>\\boxed{{{text}}}</answer>",
        f"\\boxed{{{text}}}",
    )
    return next((form for form in forms if len(complete(form, ())[0].token_ids) <= max_tokens), text)


def _actions(task: Task, environment: Environment) -> list[str]:
    """Return texts that may be actions of the environment: known ones of ours, the label, and plain texts."""
    known = environment.server_info.actions
    first = [known.valid, *(action for action in (known.failing,) if action)]
    plain = [task.label, *_named_in_the_prompt(task)[:1], "3", "hello", ""]
    return list(dict.fromkeys([*plain, *first] if environment.env.file else [*first, *plain]))


def _named_in_the_prompt(task: Task) -> list[str]:
    """Return keys and texts of the row's columns that stand in the prompt as words, the longest first.

    A tool that looks something up, such as an account, finds these and nothing else.
    """
    words = set(re.findall(r"\w+", task.prompt))
    found = words.intersection(_texts((dict(task.meta), dict(task.extra))))
    return sorted(found, key=lambda word: (-len(word), word))


def _texts(value: Any) -> Iterator[str]:
    """Yield the keys and texts in nested tables and lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def _calls(
    task: Task,
    environment: Environment,
    protocol: Callable[[], Any],
    complete: Complete,
) -> list[str]:
    """Return texts that the protocol takes for calls, of different actions if possible."""
    if environment.env.max_calls == 0:
        return []
    texts: list[str] = []
    stops = _stops(protocol)
    closings = [stop for stop in stops if stop.startswith("</")]
    for action in _actions(task, environment):
        fields = _named(action, environment.env.tools)
        for form in FORMS:
            texts.append(form.format(action=action, **fields))
        texts += [f"<{closing[2:]}{action}{closing}" for closing in closings]
        texts += [f"{action}{stop}" for stop in stops]
    texts += [f"I try {stop}" for stop in stops]
    texts_by_action: dict[str, str] = {}
    for text in texts:
        try:
            result = _read(protocol, complete, text)
        except TurnError:
            break
        if isinstance(result, Call):
            texts_by_action.setdefault(result.action, text)
        if len(texts_by_action) >= MAX_CALLS:
            break
    return list(texts_by_action.values())


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
    except Exception:  # The episodes will show it.
        return ()


def _read(protocol: Callable[[], Any], complete: Complete, text: str) -> Any:
    """Return what a fresh protocol makes of a text; None if it asks for nothing, or fails, which the episodes will
    show.

    Raises:
        TurnError: The protocol does not end. It is not tried again, because each trial takes its whole time limit.
    """
    try:
        turn_protocol = protocol()
        for _ in range(MAX_SEGMENTS):
            completion, text = complete(text, tuple(turn_protocol.stops))
            result = turn_protocol.advance(completion)
            if isinstance(result, Call | Reject):
                return result
            if not isinstance(result, GoOn) or not text:
                return None
    except TurnError as error:
        if isinstance(error.__cause__, Overrun):
            raise
        return None
    except Exception:
        return None
    return None


def _named(action: str, tools: Sequence[Any]) -> dict[str, str]:
    """Return a call of the environment's first tool, with arguments of the types in its schema."""
    function: Any = tools[0].get("function", tools[0]) if tools else {}
    properties = (function.get("parameters") or {}).get("properties") or {}
    by_type: dict[Any, Any] = {"integer": 3, "number": 1.5, "boolean": True, "array": [], "object": {}}

    def value(schema: dict[str, Any]) -> Any:
        return next(iter(schema.get("enum") or ()), by_type.get(schema.get("type"), action))

    arguments = {key: value(schema or {}) for key, schema in properties.items()}
    name = function.get("name", "python")
    return {
        "name": json.dumps(name),
        "plain_name": name,
        "arguments": json.dumps(arguments or {"code": action}),
    }


def _short(text: str) -> str:
    line = repr(text)
    return line if len(line) <= 40 else f"{line[:37]}..."
