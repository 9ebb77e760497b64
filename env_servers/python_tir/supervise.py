"""Supervise: run one sandbox process from its start to the end of its last descendant. Events on the loop; no threads.

    argv + memory file with the code -> Popen -> stdout, stderr, status pipe, pidfd -> Execution

Output is read while the program runs and capped as it comes. The snippet's clock starts when the status pipe says that its
process is up. Whatever ends it early (clock, flood, memory, cancellation) calls `end`, which kills the *init* of the sandbox: the
kernel then kills every process of its pid namespace, and the outer process exits only when all of them are gone. That exit is
the proof, and is always awaited.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Literal

from . import tree
from .limits import Limits
from .sandbox import Execution, SandboxError

MEMORY_CHECK_S = 0.25
"""How often the memory of all processes together is looked at; short snippets never are. The kernel has no event for it."""
KILL_GRACE_S = 10.0
_READ = 1 << 16
_STATUS_BYTES = 256


class _Stream:
    """One output pipe: keeps the first `keep` bytes, counts all."""

    def __init__(self, keep: int) -> None:
        self.read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.read_fd, False)
        self.keep, self.data, self.total = keep, bytearray(), 0

    def pull(self) -> bool:
        """Take one read of what is there; False when there is no more now."""
        try:
            part = os.read(self.read_fd, _READ)
        except BlockingIOError:
            return False
        self.total += len(part)
        self.data += part[: self.keep - len(self.data)]
        return bool(part)

    @property
    def truncated(self) -> bool:
        return self.total > len(self.data)


def memory_file(data: bytes) -> int:
    """An anonymous file that only holders of its descriptor can read, positioned at its start."""
    fd = os.memfd_create("tir", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


async def supervise(
    argv: Callable[[int], Sequence[str]],
    code: str,
    limits: Limits,
    *,
    end: Callable[[int], None],
    pass_fds: Sequence[int] = (),
    env: dict[str, str] | None = None,
) -> Execution:
    """Run `argv(status_fd)` with the code on stdin. `end(pid)` must make that process exit soon. Raises SandboxError."""
    streams = _Stream(limits.keep_bytes), _Stream(limits.keep_bytes), _Stream(_STATUS_BYTES)
    out, err, status = streams
    stdin = memory_file(code.encode("utf-8", "surrogatepass"))
    try:
        process = subprocess.Popen(
            argv(status.write_fd),
            stdin=stdin,
            stdout=out.write_fd,
            stderr=err.write_fd,
            pass_fds=(status.write_fd, *pass_fds),
            env=env,
            start_new_session=True,
        )
    except OSError as e:
        for s in streams:
            os.close(s.read_fd)
        raise SandboxError(f"cannot start a sandbox process: {e.strerror}") from e
    finally:
        for fd in (stdin, *(s.write_fd for s in streams)):
            os.close(fd)
    return await _Run(process, streams, limits, end).result()


class _Run:
    def __init__(self, process: subprocess.Popen, streams: tuple[_Stream, _Stream, _Stream], limits: Limits, end: Callable[[int], None]) -> None:
        self.process, self.streams, self.limits, self.end = process, streams, limits, end
        self.out, self.err, self.status = streams
        self.start = time.monotonic()
        self.stopped: Literal["start", "time_limit", "output_flood", "memory"] | None = None
        self.loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[None] = self.loop.create_future()
        self.pidfd = os.pidfd_open(process.pid)
        self.clock = self.loop.call_later(limits.start_timeout_s, self.stop, "start")
        self.memory_check: asyncio.TimerHandle | None = None
        self.loop.add_reader(self.pidfd, self.on_exit)
        self.loop.add_reader(self.status.read_fd, self.on_status)
        for s in (self.out, self.err):
            self.loop.add_reader(s.read_fd, self.on_output, s)

    async def result(self) -> Execution:
        try:
            await asyncio.shield(self.exited)
        finally:
            await asyncio.shield(asyncio.create_task(self.tear_down(), name=f"end sandbox {self.process.pid}"))
        return self.describe()

    def on_exit(self) -> None:
        if not self.exited.done() and self.process.poll() is not None:
            self.loop.remove_reader(self.pidfd)
            self.exited.set_result(None)

    def on_output(self, stream: _Stream) -> None:
        if not stream.pull():
            self.loop.remove_reader(stream.read_fd)
        elif self.out.total + self.err.total > self.limits.flood_bytes:
            self.stop("output_flood")

    def on_status(self) -> None:
        if not self.status.pull():
            self.loop.remove_reader(self.status.read_fd)
        elif self.memory_check is None:
            self.clock.cancel()
            self.clock = self.loop.call_later(self.limits.code_timeout_s, self.stop, "time_limit")
            self.memory_check = self.loop.call_later(MEMORY_CHECK_S, self.check_memory)

    def check_memory(self) -> None:
        if tree.resident_bytes(self.process.pid) > self.limits.memory_bytes:
            self.stop("memory")
        else:
            self.memory_check = self.loop.call_later(MEMORY_CHECK_S, self.check_memory)

    def stop(self, reason: Literal["start", "time_limit", "output_flood", "memory"]) -> None:
        if self.stopped is None and not self.exited.done():
            self.stopped = reason
            self.end(self.process.pid)

    async def tear_down(self) -> None:
        """Kill what is left, wait for its end, take the rest of the output, give everything back."""
        if not self.exited.done():
            self.end(self.process.pid)
            try:
                await asyncio.wait_for(asyncio.shield(self.exited), KILL_GRACE_S)
            except TimeoutError:
                self.process.kill()
                await self.exited
        self.clock.cancel()
        if self.memory_check is not None:
            self.memory_check.cancel()
        for s in self.streams:
            while s.pull():
                pass
            self.loop.remove_reader(s.read_fd)
            os.close(s.read_fd)
        os.close(self.pidfd)

    def describe(self) -> Execution:
        report = bytes(self.status.data)
        if not report.startswith(b"R"):
            why = bytes(self.err.data[-2000:]).decode("utf-8", "replace").strip() or f"exit status {self.process.returncode}"
            late = f" within {self.limits.start_timeout_s:g} s" if self.stopped == "start" else ""
            raise SandboxError(f"the interpreter did not start{late}: {why}")
        compiled, _, how = report[1:].partition(b" ")
        return Execution(
            stdout=bytes(self.out.data),
            stderr=bytes(self.err.data),
            return_code=os.waitstatus_to_exitcode(int(how)) if how else None,
            seconds=time.monotonic() - self.start,
            compiled=compiled != b"S",
            killed=None if how or self.stopped == "start" else self.stopped,
            stdout_truncated=self.out.truncated,
            stderr_truncated=self.err.truncated,
        )
