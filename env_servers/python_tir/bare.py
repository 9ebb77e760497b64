"""BareSandbox: NO isolation. The same runner, limits and clock as a plain child process, for machines that may be harmed.

What a snippet can do here: read and write what the server can, use the network, leave processes behind (setsid escapes the kill).
"""

from __future__ import annotations

import tempfile

from .bwrap import ENVIRONMENT, interpreter_command, program
from .limits import Limits
from .sandbox import Execution
from .supervise import supervise


class BareSandbox:
    isolation = "none"

    def __init__(self, limits: Limits = Limits()) -> None:
        self.limits = limits

    async def run(self, code: str) -> Execution:
        with tempfile.TemporaryDirectory(prefix="tir-", ignore_cleanup_errors=True) as workdir:
            env = {**ENVIRONMENT, "HOME": workdir, "PATH": "/usr/bin:/bin"}
            return await supervise(lambda status_fd, _: interpreter_command(status_fd, workdir, self.limits), program(code), self.limits, env=env)

    async def close(self) -> None:
        pass
