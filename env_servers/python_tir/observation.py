"""Observation: what the model reads of an execution. Pure text, by ZeroTIR's convention (spec section 2; conventions.py
has the others).

success          stdout as it is, its trailing newline included; stderr is dropped
failure          stderr, whole, without the `File "...", ` fragments and carets; stdout is dropped
not finished     the status word, e.g. "TimeLimitExceeded"
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

TIME_LIMIT = "TimeLimitExceeded"
MEMORY_LIMIT = "MemoryLimitExceeded"

_FILE = re.compile(r'File ".*?", ')


def clean_traceback(stderr: str) -> str:
    """Drop what only costs tokens: file names of the sandbox, and the caret markers."""
    return _FILE.sub("", stderr).replace("^", "")


def observation_of_reply(reply: Mapping[str, Any]) -> tuple[str | None, int]:
    """Return (observation, error) of a SandboxFusion `/run_code` reply, as ZeroTIR's client reads it.

    It is for programs that ask our `/run_code`, or SandboxFusion itself, and show the model what ZeroTIR shows. `error`
    is 1 where the code failed or did not finish. A reply without a result has no observation. The status "SandboxError"
    beside a finished run counts as no error in the reference.
    """
    run = reply.get("run_result")
    if not run:
        return None, 1
    if run.get("status") != "Finished":
        return run.get("status"), 1
    if reply.get("status") == "Success":
        return run.get("stdout"), 0
    return clean_traceback(run.get("stderr") or ""), int(reply.get("status") == "Failed")
