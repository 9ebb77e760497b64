"""Sandbox: code -> Execution. What the environment needs from whatever runs the code.

`bwrap.BwrapSandbox` isolates; `bare.BareSandbox` does not and is for development only. Warm workers will be a third.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Killed = Literal["time_limit", "output_flood", "memory"]


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


class SandboxError(Exception):
    """The sandbox itself failed: nothing can be said about the code."""


class Sandbox(Protocol):
    isolation: str
    """Level that /health reports: "bwrap+seccomp", "bwrap", "none"."""

    async def run(self, code: str) -> Execution:
        """Raises SandboxError. Cancellation kills the execution; when this returns or raises, none of its processes is left."""

    async def close(self) -> None: ...
