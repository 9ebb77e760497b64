"""A sandbox WITHOUT isolation: the same runner, limits and clock in a plain child process, for machines that may be
harmed.

A snippet can read and write what the server can, use the network, and leave processes behind (with setsid).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..limits import Limits
from ..sandbox import Execution, Sandbox, Snippet
from .bwrap import ENVIRONMENT, interpreter_command, run_job
from .call_directory import call_directory


class BareSandbox(Sandbox):
    """Runs each call in a child process, without isolation."""

    isolation = "none"

    def __init__(self, limits: Limits = Limits()) -> None:
        self.limits = limits

    async def execute(self, snippet: Snippet, limits: Limits) -> Execution:
        """Run a snippet in a temporary directory. Raises SandboxError."""
        async with call_directory() as workdir:
            env = {**ENVIRONMENT, "HOME": workdir, "PATH": "/usr/bin:/bin"}

            def argv(status_fd: int, _info_fd: int) -> Sequence[str]:
                return interpreter_command(status_fd, workdir, limits)

            return await run_job(argv, limits, snippet, env=env)
