"""Observation: what the model reads of an execution. Pure text, by ZeroTIR's convention (spec section 2; conventions.py
has the others).

success          stdout as it is, its trailing newline included; stderr is dropped
failure          stderr, whole, without the `File "...", ` fragments and carets; stdout is dropped
not finished     the status word, e.g. "TimeLimitExceeded"
"""

from __future__ import annotations

import re

TIME_LIMIT = "TimeLimitExceeded"
MEMORY_LIMIT = "MemoryLimitExceeded"

_FILE = re.compile(r'File ".*?", ')


def clean_traceback(stderr: str) -> str:
    """Drop what only costs tokens: file names of the sandbox, and the caret markers."""
    return _FILE.sub("", stderr).replace("^", "")
