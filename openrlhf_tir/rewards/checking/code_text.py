"""Code in text, as ZeroTIR reads it: response -> program, SandboxFusion reply -> observation text.

Source: env/math/{extract_code,sandbox_utils}.py of the reference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

PYTHON_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
OUTPUT_BLOCK = re.compile(r"```output\n(.*?)```", re.DOTALL)
_FILE = re.compile(r'File ".*?", ')


def extract_code(text: str) -> str:
    """All closed python blocks as one program, "" if there is none. Earlier blocks lose their top-level lines that print.

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


def observation_of_reply(reply: Mapping[str, Any]) -> tuple[str | None, int]:
    """(text to insert, 1 if the run failed). No run result at all: (None, 1), a fault of the sandbox."""
    run = reply.get("run_result")
    if run is None:
        return None, 1
    finished = run["status"] == "Finished"
    if not finished:
        text = run["status"]
    elif reply["status"] == "Success":
        text = run["stdout"]
    else:
        text = _FILE.sub("", run["stderr"]).replace("^", "")
    return text, int(reply["status"] == "Failed" or not finished)
