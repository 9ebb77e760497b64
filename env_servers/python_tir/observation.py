"""What the model reads of an execution, by ZeroTIR's convention (spec section 2). conventions.py has the others.

success          stdout unchanged, including its last newline; stderr is dropped
failure          all of stderr, without the `File "...", ` fragments and carets; stdout is dropped
not finished     the status word, for example "TimeLimitExceeded"
"""

from __future__ import annotations

import re

TIME_LIMIT = "TimeLimitExceeded"
MEMORY_LIMIT = "MemoryLimitExceeded"

_FILE = re.compile(r'File ".*?", ')


def clean_traceback(stderr: str) -> str:
    """Drop the parts of a traceback that only cost tokens: file names of the sandbox, and the caret markers."""
    return _FILE.sub("", stderr).replace("^", "")
