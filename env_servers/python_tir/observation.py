"""What the model reads of an execution, by ZeroTIR's convention (spec section 2). conventions.py has the others.

success          stdout unchanged, including its last newline; stderr is dropped
failure          all of stderr, without the `File "...", ` fragments and carets; stdout is dropped
not finished     the status word, for example "TimeLimitExceeded"
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

TIME_LIMIT = "TimeLimitExceeded"
MEMORY_LIMIT = "MemoryLimitExceeded"

_FILE = re.compile(r'File ".*?", ')


def clean_traceback(stderr: str) -> str:
    """Drop the parts of a traceback that only cost tokens: file names of the sandbox, and the caret markers."""
    return _FILE.sub("", stderr).replace("^", "")


def observation_of_reply(reply: Mapping[str, Any]) -> tuple[str | None, int]:
    """Return the observation and the error flag of a SandboxFusion `/run_code` reply, as ZeroTIR's client reads it.

    For programs that call our `/run_code`, or SandboxFusion itself, and show the model what ZeroTIR shows.

    Returns:
        The observation, None if the reply has no result; and 1 if the code failed or did not finish, else 0. As in the
            reference, the status "SandboxError" beside a finished run counts as no error.
    """
    run = reply.get("run_result")
    if not run:
        return None, 1
    if run.get("status") != "Finished":
        return run.get("status"), 1
    if reply.get("status") == "Success":
        return run.get("stdout", ""), 0
    return clean_traceback(run.get("stderr") or ""), int(reply.get("status") == "Failed")
