"""Tool calls in text: what the model wrote -> calls, in order. Every format is one small parser (formats.py names
them).

A call that cannot be read is data (`Malformed`), in its place among the others, for the reward to weigh and the model
to be told: no parser raises, whatever the text. All run in linear time: a response may open a tag ten thousand times
and never close it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Defect = Literal["unclosed", "empty", "not_json", "not_a_call", "no_name", "bad_arguments"]


@dataclass(frozen=True, slots=True)
class ParsedCall:
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Malformed:
    """`text` is what stands where a call should be; `detail` is a sentence for the model."""

    text: str
    defect: Defect
    detail: str


Parser = Callable[[str], list[ParsedCall | Malformed]]


@dataclass(frozen=True, slots=True)
class Block:
    """Text between an opening and its closing mark; not `closed`: from the last opening to the end."""

    text: str
    closed: bool = True


def blocks(text: str, opening: str, closing: str) -> Iterator[Block]:
    """Every block in order. A block ends at the first closing mark after its opening, as a regular expression's `.*?`
    would have it."""
    at = text.find(opening)
    while at >= 0:
        start = at + len(opening)
        end = text.find(closing, start)
        if end < 0:
            yield Block(text[start:], closed=False)
            return
        yield Block(text[start:end])
        at = text.find(opening, end + len(closing))


def unclosed(block: Block, closing: str) -> Malformed:
    return Malformed(block.text, "unclosed", f"The call is not closed: {closing} is missing.")
