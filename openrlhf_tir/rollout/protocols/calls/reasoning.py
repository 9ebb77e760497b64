r"""Remove the model's thoughts from a message.

A call inside of a thought is not a call: "<think>I could write <tool_call>...</tool_call></think>The answer is 4."
A thought begins at an opening tag, or at the start of the message if the generation prompt contained the opening tag. A
thought without an end lasts to the end of the message. A tag inside of a call's arguments (code that prints "</think>")
belongs to the arguments.
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
    ("◁think▷", "◁/think▷"),
)
_TAG = re.compile("|".join(re.escape(tag) for pair in _TAGS for tag in pair))
_CLOSING_OF = dict(_TAGS)
# Only the last newline before a value counts: a run of newlines is read once, not once for each of them.
_JSON_STARTS = re.compile(r"(?:(?:\A|<tool_call>|<tool>|<\|python_tag\|>|\[TOOL_CALLS\])\s*|\n[^\S\n]*)(?=[{\[])")
_MAX_FAILED_READS = 8
"""Characters that are parsed as JSON without success, in lengths of the message. Without a limit, nested brackets would
be parsed once from each of them, in quadratic time."""


def without_reasoning(text: str) -> str:
    """Return the parts of `text` that are not thoughts, in order."""
    parts: list[str] = []
    part_start = 0
    closing_tag: str | None = None  # the tag that ends the current thought; None outside of thoughts
    for match in _tags_outside(_json_spans(text), text):
        if closing_tag is None and match[0] in _CLOSING_OF:
            parts.append(text[part_start : match.start()])
            closing_tag = _CLOSING_OF[match[0]]
        elif closing_tag is None:
            # A closing tag without an opening one: the generation prompt opened the thought, so all before it was one.
            parts.clear()
            part_start = match.end()
        elif match[0] == closing_tag:
            part_start = match.end()
            closing_tag = None
    if closing_tag is None:
        parts.append(text[part_start:])
    return "".join(parts)


def _tags_outside(spans: Sequence[tuple[int, int]], text: str) -> list[re.Match[str]]:
    """Return the tags that stand in none of the spans. The spans are in order and do not overlap."""
    tags = []
    current = 0
    for match in _TAG.finditer(text):
        while current < len(spans) and spans[current][1] <= match.start():
            current += 1
        if current == len(spans) or match.start() < spans[current][0]:
            tags.append(match)
    return tags


def _json_spans(text: str) -> list[tuple[int, int]]:
    """Return (start, end) of the JSON values of calls. Tags in their strings open and close nothing."""
    decoder = json.JSONDecoder()
    spans: list[tuple[int, int]] = []
    budget = _MAX_FAILED_READS * len(text)
    for match in _JSON_STARTS.finditer(text):
        start = match.end()
        if spans and start < spans[-1][1]:
            continue
        try:
            _, end = decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            # Besides what was parsed: the error's constructor counts the lines before its position.
            budget -= error.pos - start + error.pos // 8
        except (ValueError, RecursionError):  # a number with too many digits, or nested too deep
            budget -= len(text)
        else:
            spans.append((start, end))
        if budget < 0:
            break
    return spans
