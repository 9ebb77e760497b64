"""Sandbox: code -> Execution. What the environment needs from whatever runs the code.

`warm.sandbox.WarmSandbox` and `bwrap.BwrapSandbox` isolate; `bare.BareSandbox` does not and is for development only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, Protocol

Killed = Literal["time_limit", "output_flood", "memory"]
NO_FILES: Mapping[str, bytes] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Execution:
    """How one snippet ended. Facts only; `env.py` makes an observation of them."""

    stdout: bytes
    stderr: bytes
    return_code: int | None
    """Exit code, -N for death by signal N; None when the snippet was killed by us or died with its sandbox."""
    seconds: float
    """Wall clock, sandbox start included."""
    compiled: bool = True
    killed: Killed | None = None
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Of the paths asked for, those that exist."""


class SandboxError(Exception):
    """The sandbox itself failed: nothing can be said about the code."""


class Sandbox(Protocol):
    isolation: str
    """Level that /health reports: "bwrap+seccomp", "bwrap", "none"."""

    async def run(
        self,
        code: str,
        *,
        stdin: bytes = b"",
        files: Mapping[str, bytes] = NO_FILES,
        fetch: Sequence[str] = (),
        timeout_s: float | None = None,
        memory_bytes: int | None = None,
        keep_bytes: int | None = None,
    ) -> Execution:
        """`files` and `fetch` are paths below the working directory: put there before, read from there after (also when the code failed,
        not when it was killed). The last three replace the sandbox's limits for this call; memory can only be lowered.

        Raises SandboxError. Cancellation kills the execution; when this returns or raises, none of its processes is left.
        """

    async def close(self) -> None: ...
