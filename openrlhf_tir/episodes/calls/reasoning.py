r"""Reasoning: the text of a message -> what it says outside of its thoughts.

A call that is only thought about is none: "<think>I could write <tool_call>...</tool_call></think>The answer is 4."
Thoughts begin at an opening tag, or at the start of the message where the generation prompt has opened them; thoughts
that do not end last to the end of the message. A tag inside of a call's arguments (code that prints "</think>") belongs
to the arguments.
"""

from __future__ import annotations

import json
import re

_TAGS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
)
_TAG = re.compile("|".join(re.escape(tag) for pair in _TAGS for tag in pair))
_CLOSING_OF = dict(_TAGS)
_JSON_STARTS = re.compile(r"(?:\A|<tool_call>|<tool>|<\|python_tag\|>|\[TOOL_CALLS\]|\n)\s*(?=[{\[])")


def without_reasoning(text: str) -> str:
    """Return the parts of `text` that are not thoughts, in order."""
    arguments = _json_spans(text)
    tags = [m for m in _TAG.finditer(text) if not any(a <= m.start() < b for a, b in arguments)]
    said: list[str] = []
    at = 0
    waiting_for: str | None = None
    for m in tags:
        if waiting_for is None and m[0] in _CLOSING_OF:
            said.append(text[at : m.start()])
            waiting_for = _CLOSING_OF[m[0]]
        elif waiting_for is None:
            said.clear()  # the generation prompt had opened it: all that came before was thought
            at = m.end()
        elif m[0] == waiting_for:
            at = m.end()
            waiting_for = None
    if waiting_for is None:
        said.append(text[at:])
    return "".join(said)


def _json_spans(text: str) -> list[tuple[int, int]]:
    """Return where the JSON values of calls stand: tags in their strings open and close nothing."""
    decoder = json.JSONDecoder()
    spans: list[tuple[int, int]] = []
    for m in _JSON_STARTS.finditer(text):
        if spans and m.end() < spans[-1][1]:
            continue
        try:
            _, end = decoder.raw_decode(text, m.end())
        except (ValueError, RecursionError):
            continue
        spans.append((m.end(), end))
    return spans
