"""Limits of one execution, in one place. What each bounds, and what happens at the bound, is on the field."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Limits:
    code_timeout_s: float = 5.0
    """Wall clock of the snippet, from the start of its interpreter: error_type time_limit."""
    start_timeout_s: float = 10.0
    """Wall clock of sandbox and interpreter start: env_error, never the model's fault."""
    memory_bytes: int = 2 << 30
    """Address space of each process (MemoryError), and what all hold, files and sockets too (error_type memory)."""
    reserves: bool = False
    """The program reserves far more address space than it uses, as runtimes with a heap of their own do: `memory_bytes`
    bounds each process's data instead."""
    processes: int = 64
    """Processes and threads at once: EAGAIN in the snippet. Where the kernel counts no call by itself (`fence`), also
    killed: error_type memory."""
    file_bytes: int = 64 << 20
    """One written file (OSError EFBIG), and /tmp and /dev/shm each as a whole (ENOSPC), within `memory_bytes`."""
    open_files: int = 256
    stack_bytes: int = 8 << 20
    keep_bytes: int = 64 << 10
    """Bytes that are kept of stdout and of stderr each; more is read and thrown away: signals["stdout_truncated"]."""
    flood_bytes: int = 8 << 20
    """Bytes of stdout and stderr together; more kills the snippet: error_type output_flood."""

    @property
    def files(self) -> int:
        """In /tmp and in /dev/shm each: one per page of `file_bytes`. More is ENOSPC in a warm slot; a fresh sandbox,
        whose tmpfs cannot be told of it, is killed at the next look at its memory: error_type memory."""
        return self.file_bytes >> 12

    def for_call(self, timeout_s: float | None, memory_bytes: int | None, keep_bytes: int | None) -> Limits:
        """What one call may ask for: another wall clock and output cap, and less memory."""
        if timeout_s is memory_bytes is keep_bytes is None:
            return self
        return replace(
            self,
            code_timeout_s=self.code_timeout_s if timeout_s is None else timeout_s,
            memory_bytes=min(self.memory_bytes, memory_bytes or self.memory_bytes),
            keep_bytes=keep_bytes or self.keep_bytes,
        )

    def rlimits(self, *, cpu: bool = True) -> str:
        """For the runner. CPU seconds are a second line of defence behind the wall clock; a session, where they add up,
        has the clock alone."""
        values = {
            "CPU": math.ceil(self.code_timeout_s) + 1,
            "DATA" if self.reserves else "AS": self.memory_bytes,
            "NPROC": self.processes,
            "FSIZE": self.file_bytes,
            "NOFILE": self.open_files,
            "CORE": 0,
            "STACK": self.stack_bytes,
        }
        return ",".join(f"{name}={value}" for name, value in values.items() if cpu or name != "CPU")
