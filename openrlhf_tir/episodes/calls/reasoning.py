r"""Reasoning: the text of a message -> what it says outside of its thoughts.

A call that is only thought about is none: "<think>I could write <tool_call>...</tool_call></think>The answer is 4."
Thoughts begin at an opening tag, or at the start of the message where the generation prompt has opened them; thoughts
that do not end last to the end of the message. A tag inside of a call's arguments (code that prints "</think>") belongs
to the arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

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
# Only the last newline before a value counts: a run of newlines is read once, not once for each of them.
_JSON_STARTS = re.compile(r"(?:(?:\A|<tool_call>|<tool>|<\|python_tag\|>|\[TOOL_CALLS\])\s*|\n[^\S\n]*)(?=[{\[])")
_READ_IN_VAIN = 8
"""Texts that are no JSON are read up to this many times the length of a message: what nests may be read once for each
of its beginnings."""


def without_reasoning(text: str) -> str:
    """Return the parts of `text` that are not thoughts, in order."""
    tags = _tags_outside(_json_spans(text), text)
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


def _tags_outside(spans: Sequence[tuple[int, int]], text: str) -> list[re.Match[str]]:
    """Return the tags that stand in none of the spans, which are in order and do not overlap."""
    found = []
    current = 0
    for m in _TAG.finditer(text):
        while current < len(spans) and spans[current][1] <= m.start():
            current += 1
        if current == len(spans) or m.start() < spans[current][0]:
            found.append(m)
    return found


def _json_spans(text: str) -> list[tuple[int, int]]:
    """Return where the JSON values of calls stand: tags in their strings open and close nothing."""
    decoder = json.JSONDecoder()
    spans: list[tuple[int, int]] = []
    left = _READ_IN_VAIN * len(text)
    for m in _JSON_STARTS.finditer(text):
        if spans and m.end() < spans[-1][1]:
            continue
        try:
            _, end = decoder.raw_decode(text, m.end())
        except json.JSONDecodeError as error:
            left -= error.pos - m.end() + error.pos // 8  # the error counts the lines up to its place
        except (ValueError, RecursionError):  # a number of too many digits, or too deep
            left -= len(text)
        else:
            spans.append((m.end(), end))
        if left < 0:
            break
    return spans
