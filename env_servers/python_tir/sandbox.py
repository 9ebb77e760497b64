"""Sandbox: code -> Execution. What the environment needs from whatever runs the code.

`warm.sandbox.WarmSandbox` and `bwrap.BwrapSandbox` isolate; `bare.BareSandbox` does not and is for development only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from .limits import Limits

Killed = Literal["time_limit", "output_flood", "memory"]
FETCH_BYTES = 32 << 20
"""Bytes of all files together that one call hands back; one that has no room left is left out, and named."""
NO_FILES: Mapping[str, bytes] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Program:
    """What a call runs that is no Python: a file of its own, and the command that runs it."""

    name: str
    """The file's path below the working directory; it can be executed."""
    content: bytes
    argv: Sequence[str]
    """The command: an absolute path, or one that begins with "./", and its arguments."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """What one call runs, and what goes in and comes out besides its output."""

    code: str
    """Python source; with a `program`, "" and nothing."""
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Path below the working directory -> content, put there before."""
    fetch: Sequence[str] = ()
    """Paths read from there after, also when the code failed, not when it was killed."""
    program: Program | None = None

    @property
    def source(self) -> bytes:
        return self.program.content if self.program else self.code.encode("utf-8", "surrogatepass")

    @property
    def parts(self) -> tuple[Any, ...]:
        """As `isolation.runner` takes it, for marshal: source, stdin, files, what is fetched (bytes that it may
        have, paths), a program's name and command."""
        program = [self.program.name, *self.program.argv] if self.program else []
        fetch = [FETCH_BYTES, *self.fetch] if self.fetch else []
        return self.source, self.stdin, list(self.files.items()), fetch, program


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
    """The files that exist of the paths asked for, and have room."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Path -> bytes of the files that exist and had no room in FETCH_BYTES."""


class SandboxError(Exception):
    """The sandbox itself failed: nothing can be said about the code."""


class Sandbox(ABC):
    isolation: str
    """Level that /health reports: "bwrap+seccomp", "bwrap", "none"."""
    limits: Limits

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
        """The first four are a `Snippet`. The last three replace the sandbox's limits for this call; memory can only be
        lowered. See `execute`."""
        return await self.execute(
            Snippet(code, stdin, files, fetch), self.limits.for_call(timeout_s, memory_bytes, keep_bytes)
        )

    @abstractmethod
    async def execute(self, snippet: Snippet, limits: Limits) -> Execution:
        """Raises SandboxError. Cancellation kills the execution; when this ends, none of its processes is left."""

    async def close(self) -> None:
        """End what is kept between calls: nothing, here."""
        return
