"""Read the code in a response as ZeroTIR does. Source: env/math/extract_code.py of the reference."""

from __future__ import annotations

import re

PYTHON_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
OUTPUT_BLOCK = re.compile(r"```output\n(.*?)```", re.DOTALL)


def extract_code(text: str) -> str:
    """Return all closed python blocks as one program; "" if there is none.

    All blocks but the last lose their top-level lines that print. As in the reference, text before the first python
    fence counts as well if another fence ends it.
    """
    closed = [part.split("```", 1)[0].strip() for part in text.split("```python") if "```" in part]
    blocks = [block for block in closed if block]
    if not blocks:
        return ""
    lines = [line for block in blocks[:-1] for line in block.split("\n") if _keeps(line)]
    return "\n".join([*lines, blocks[-1]]).strip()


def _keeps(line: str) -> bool:
    """Return True unless the line prints at the top level."""
    return line.startswith(("    ", "import", "def ")) or "print(" not in line


def has_code(text: str) -> bool:
    """Return True if there is a closed python block with code."""
    return bool(extract_code(text))
