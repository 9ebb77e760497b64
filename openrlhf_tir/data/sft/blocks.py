"""Split a message of the assistant into what it wrote itself and what a tool wrote inside it, such as ReTool's block
<interpreter> ... </interpreter>.

A block is masked with the white space around it: in an episode the model stops at </code>, and everything up to its
next word belongs to the environment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...config.paths import shown
from ...errors import DataError


def pattern(blocks: Sequence[str]) -> re.Pattern[str] | None:
    """Return a pattern of sft.mask_blocks, each 'BEGIN...END'; None if there are none."""
    ends = [block.partition("...")[::2] for block in blocks]
    return re.compile("|".join(rf"\s*{re.escape(a)}.*?{re.escape(b)}\s*" for a, b in ends), re.DOTALL) if ends else None


def cut(text: str, blocks: Sequence[str], where: str) -> list[tuple[str, bool]]:
    """Return (text, whether a tool wrote it), in order, without empty texts.

    Raises:
        DataError: A block does not end, so text of a tool would be learned.
    """
    mask = pattern(blocks)
    parts: list[tuple[str, bool]] = []
    position = 0
    for match in mask.finditer(text) if mask else ():
        parts += [(text[position : match.start()], False), (match[0], True)]
        position = match.end()
    parts.append((text[position:], False))
    for block in blocks:
        begin, _, end = block.partition("...")
        if any(begin in part for part, tool in parts if not tool):
            raise DataError(
                f"{where}: {begin} does not end with {end}, in {shown(text, 120)}."
                " Correct or remove the row, or change sft.mask_blocks."
            )
    return [(part, tool) for part, tool in parts if part]
