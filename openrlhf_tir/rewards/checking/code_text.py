"""Code in text, as ZeroTIR reads it: response -> program. Source: env/math/extract_code.py of the reference."""

from __future__ import annotations

import re

PYTHON_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
_RUN = re.compile(r"```python.*?```output", re.DOTALL)
OUTPUT_BLOCK = re.compile(r"```output\n(.*?)```", re.DOTALL)


def extract_code(text: str) -> str:
    """All closed python blocks as one program, "" if there is none. Earlier blocks lose their top-level lines that
    print.

    As in the reference, what precedes the first python fence counts as well where some other fence ends it.
    """
    closed = [part.split("```", 1)[0].strip() for part in text.split("```python") if "```" in part]
    blocks = [b for b in closed if b]
    if not blocks:
        return ""
    kept = [line for block in blocks[:-1] for line in block.split("\n") if _keeps(line)]
    return "\n".join([*kept, blocks[-1]]).strip()


def _keeps(line: str) -> bool:
    return line.startswith(("    ", "import", "def ")) or "print(" not in line


def has_code(text: str) -> bool:
    return bool(extract_code(text))


def block_pattern_score(text: str) -> float:
    """Return -0.1 where not every python block is followed by an output block, else 0; no reward of the reference."""
    blocks = len(PYTHON_BLOCK.findall(text))
    return -0.1 if blocks and blocks != len(_RUN.findall(text)) else 0.0
