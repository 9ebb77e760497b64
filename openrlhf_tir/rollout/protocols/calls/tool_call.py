"""Tool calls in text. Every format has one small parser, which returns the calls in order (formats.py names them).

A call that cannot be read is data (`Malformed`), in its place among the others: the reward may weigh it and the model
is told. No parser raises, whatever the text, and every parser runs in linear time: a response may open a tag ten
thousand times and never close it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Defect = Literal["unclosed", "empty", "not_json", "not_a_call", "no_name", "bad_arguments"]


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call of the tool `name`."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Malformed:
    """A call that cannot be read.

    Attributes:
        text: The text in place of a call.
        defect: What is wrong.
        detail: A sentence for the model.
    """

    text: str
    defect: Defect
    detail: str


Parser = Callable[[str], list[ParsedCall | Malformed]]


@dataclass(frozen=True, slots=True)
class Block:
    """Text between an opening and a closing mark; if not `closed`, from the last opening mark to the end of the
    text."""

    text: str
    closed: bool = True


def blocks(text: str, opening: str, closing: str) -> Iterator[Block]:
    """Yield every block in order. A block ends at the first closing mark behind its opening mark."""
    position = text.find(opening)
    while position >= 0:
        start = position + len(opening)
        end = text.find(closing, start)
        if end < 0:
            yield Block(text[start:], closed=False)
            return
        yield Block(text[start:end])
        position = text.find(opening, end + len(closing))


def unclosed(block: Block, closing: str) -> Malformed:
    """Return the defect of a block without a closing mark."""
    return Malformed(block.text, "unclosed", f"The call is not closed: {closing} is missing.")
