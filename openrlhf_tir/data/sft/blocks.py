"""Blocks: a message of the assistant -> what it wrote itself, and what a tool wrote inside of it (ReTool's
<interpreter> ... </interpreter>).

A block is masked with the white space around it: in an episode the model stops at </code>, and everything up to its
next word is the environment's."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...config.paths import shown
from ...errors import DataError


def pattern(blocks: Sequence[str]) -> re.Pattern[str] | None:
    """A pattern of sft.mask_blocks, each 'BEGIN...END'. None where there is none."""
    ends = [block.partition("...")[::2] for block in blocks]
    return re.compile("|".join(rf"\s*{re.escape(a)}.*?{re.escape(b)}\s*" for a, b in ends), re.DOTALL) if ends else None


def cut(text: str, blocks: Sequence[str], where: str) -> list[tuple[str, bool]]:
    """(text, whether a tool wrote it), in order; nothing empty. Raises DataError for a block that does not end: the
    rest would be learned."""
    found = pattern(blocks)
    parts: list[tuple[str, bool]] = []
    at = 0
    for m in found.finditer(text) if found else ():
        parts += [(text[at : m.start()], False), (m[0], True)]
        at = m.end()
    parts.append((text[at:], False))
    for block in blocks:
        begin, _, end = block.partition("...")
        if any(begin in part for part, tool in parts if not tool):
            raise DataError(
                f"{where}: {begin} does not end with {end}, in {shown(text, 120)}."
                " Correct or remove the row, or change sft.mask_blocks."
            )
    return [(part, tool) for part, tool in parts if part]
