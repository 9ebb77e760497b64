"""The interface of what runs code: a snippet goes in, an Execution comes out.

All of `isolation/` isolate but `isolation/bare.py`, which is for development only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from .limits import Limits

Killed = Literal["time_limit", "output_flood", "memory"]
"""The limit at which a snippet was killed."""
FETCH_BYTES = 32 << 20
"""Bytes of all files together that one call returns. A file that does not fit is left out and named."""
NO_FILES: Mapping[str, bytes] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Program:
    """A program in another language than Python: a file, and the command that runs it.

    Attributes:
        name: Path of the file below the working directory. The file is executable.
        content: Content of the file.
        argv: The command (an absolute path, or one that begins with "./") and its arguments.
    """

    name: str
    content: bytes
    argv: Sequence[str]


@dataclass(frozen=True, slots=True)
class Snippet:
    """Everything that goes into one call.

    Attributes:
        code: Python source; "" if there is a `program`.
        stdin: Standard input.
        files: Files that are written before the call, by path below the working directory.
        fetch: Paths below the working directory that are read after the call, also if the code failed, but not if it
            was killed.
        program: A program in another language.
    """

    code: str
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    fetch: Sequence[str] = ()
    program: Program | None = None

    @property
    def source(self) -> bytes:
        """The source as bytes."""
        return self.program.content if self.program else self.code.encode("utf-8", "surrogatepass")

    @property
    def parts(self) -> tuple[Any, ...]:
        """The tuple that `isolation.runner` unpacks with marshal.

        It holds the source, stdin, the files, what is fetched (the bytes allowed, then the paths), and the name and
        command of the program. The last two are empty lists if there is nothing to fetch or no program.
        """
        program = [self.program.name, *self.program.argv] if self.program else []
        fetch = [FETCH_BYTES, *self.fetch] if self.fetch else []
        return self.source, self.stdin, list(self.files.items()), fetch, program


@dataclass(frozen=True, slots=True)
class Execution:
    """How one snippet ended: facts only, of which `env.py` makes an observation.

    Attributes:
        stdout: Standard output, up to `Limits.keep_bytes`.
        stderr: Standard error, up to `Limits.keep_bytes`.
        return_code: Exit code, -N for death by signal N; None if the snippet was killed at a limit or died with its
            sandbox.
        seconds: Wall clock, including the start of the sandbox.
        compiled: False if the source has a syntax error.
        killed: The limit at which the snippet was killed; None if it was not.
        stdout_truncated: True if more was printed than is kept.
        files: Those of the requested files that exist and fit, by path.
        left_out: Sizes in bytes of the requested files that exist and do not fit in FETCH_BYTES, by path.
    """

    stdout: bytes
    stderr: bytes
    return_code: int | None
    seconds: float
    compiled: bool = True
    killed: Killed | None = None
    stdout_truncated: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)


class SandboxError(Exception):
    """Raised when the sandbox itself failed, so that nothing is known about the code."""


class NoCore(SandboxError):
    """Raised when a time limit was missed while the machine had no core for the code (`isolation.core_wait`)."""


class Sandbox(ABC):
    """Runs snippets.

    Attributes:
        isolation: The level that /health reports: "bwrap+seccomp", "bwrap", "none" and others.
        limits: Default limits of a call.
    """

    isolation: str
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
        """Run Python code and return how it ended.

        Args:
            code: Python source.
            stdin: Standard input.
            files: As in `Snippet`.
            fetch: As in `Snippet`.
            timeout_s: Wall clock of this call, instead of the sandbox's limit.
            memory_bytes: Memory of this call. It can only lower the sandbox's limit.
            keep_bytes: Bytes kept of each output stream of this call.

        Raises:
            SandboxError: The sandbox failed.
        """
        return await self.execute(
            Snippet(code, stdin, files, fetch), self.limits.for_call(timeout_s, memory_bytes, keep_bytes)
        )

    @abstractmethod
    async def execute(self, snippet: Snippet, limits: Limits) -> Execution:
        """Run a snippet within limits and return how it ended.

        A cancelled call is killed. When this method returns or raises, no process of the call is left.

        Raises:
            SandboxError: The sandbox failed.
        """

    async def close(self) -> None:
        """Stop what is kept between calls. The base class keeps nothing."""
        return
