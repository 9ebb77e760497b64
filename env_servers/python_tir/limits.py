"""Limits of one execution. Each field says what it bounds and what happens at the bound."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one execution."""

    code_timeout_s: float = 5.0
    """Wall-clock seconds of the snippet, from the start of its interpreter. Beyond: error_type time_limit, or env_error
    if the machine had no core for it in most of them (`isolation.core_wait`)."""
    start_timeout_s: float = 60.0
    """Wall-clock seconds in which sandbox and interpreter must start. Beyond: env_error, never the model's fault."""
    memory_bytes: int = 2 << 30
    """Address space of each process (beyond: MemoryError), and memory of all processes, files and sockets together
    (beyond: error_type memory)."""
    reserves: bool = False
    """True if the program reserves far more address space than it uses, as runtimes with their own heap do:
    `memory_bytes` then bounds the data of each process instead."""
    processes: int = 64
    """Processes and threads at once. Beyond: EAGAIN in the snippet, and where the kernel does not count a call by
    itself (`fence`), also killed: error_type memory."""
    file_bytes: int = 64 << 20
    """Bytes of one written file (OSError EFBIG), and of /tmp and of /dev/shm as a whole (ENOSPC), within
    `memory_bytes`."""
    open_files: int = 256
    stack_bytes: int = 8 << 20
    keep_bytes: int = 64 << 10
    """Bytes kept of stdout and of stderr each. The remainder is read and dropped: signals["stdout_truncated"]."""
    flood_bytes: int = 8 << 20
    """Bytes of stdout and stderr together, beyond which the snippet is killed: error_type output_flood."""

    @property
    def files(self) -> int:
        """Number of files in /tmp and in /dev/shm each: one per page of `file_bytes`.

        Beyond, a warm slot gives ENOSPC. The tmpfs of a fresh sandbox cannot be given this limit: such a call is killed
        at the next check of its memory, error_type memory.
        """
        return self.file_bytes >> 12

    def for_call(self, timeout_s: float | None, memory_bytes: int | None, keep_bytes: int | None) -> Limits:
        """Return the limits of one call, which may have another wall clock and output cap, and less memory."""
        if timeout_s is memory_bytes is keep_bytes is None:
            return self
        return replace(
            self,
            code_timeout_s=self.code_timeout_s if timeout_s is None else timeout_s,
            memory_bytes=min(self.memory_bytes, memory_bytes or self.memory_bytes),
            keep_bytes=keep_bytes or self.keep_bytes,
        )

    def rlimits(self, *, cpu: bool = True) -> str:
        """Return the resource limits as `runner` takes them.

        CPU seconds are a second line of defence behind the wall clock. In a session they would add up over its calls,
        so it has the clock alone (`cpu=False`).
        """
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
