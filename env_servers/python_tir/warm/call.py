"""One request on one slot, from the descriptors that go in to the proof that nothing of it is left.

    code -> read-only memory file + two pipes -> slot -> reply: every process of the call is dead, its files are gone ->
    Execution

Everything is an event on the loop; there are no threads. Output is read while the snippet runs and capped as it comes.
The slot keeps the snippet's clock, which starts when the snippet is up: using up its time is the snippet's own fault,
however short that was, unless the host had no core for it (`core_wait`); not to come up within
`Limits.start_timeout_s` is the host's.

The server asks the slot to end a call (flood, memory, cancellation). If no answer comes it kills the slot with all its
processes, and the result is that of the reason. A slot that ends by itself is a SandboxError.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from ..isolation.control_group import ControlGroup
from ..isolation.core_wait import CoreWait
from ..isolation.memory import private_bytes, session_bytes, used_bytes
from ..isolation.supervise import MEMORY_CHECK_S, Stream, memory_file
from ..limits import Limits
from ..sandbox import Execution, SandboxError
from .container import readable

ANSWER_S = 8.0
"""Seconds in which a slot must answer after its deadline, or after it was asked to end a call. A session that comes to
rest slowly takes up to three times `freeze.FREEZE_S`."""

Stop = Literal["time_limit", "output_flood", "memory", "cancelled"]


@dataclass(eq=False, slots=True)
class Slot:
    """The server's end of one slot.

    Attributes:
        sock: Connection to the slot.
        pid: Process id of the slot, PID 1 of its namespace.
        pidfd: Descriptor of that process.
        directories: Descriptors of the slot's tmpfs mounts, from which their size is read.
        group: The slot's control group, if the server may create any.
        usable: False when the slot must be replaced.
        initial_bytes: Private memory of the slot before its first call.
    """

    sock: socket.socket
    pid: int
    pidfd: int
    directories: list[int]
    group: ControlGroup | None = None
    usable: bool = True
    initial_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.initial_bytes = private_bytes(self.pid)

    def kill(self) -> None:
        """Kill the slot with everything in its namespace."""
        self.usable = False
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    async def end(self) -> None:
        """Kill the slot and wait until no process of its namespace is left: the kernel reports the end of a PID 1 only
        then."""
        self.kill()
        await readable(self.pidfd)
        self.close()

    def close(self) -> None:
        """Release the descriptors and the control group."""
        self.sock.close()
        for fd in (self.pidfd, *self.directories):
            os.close(fd)
        if self.group is not None:
            self.group.remove()

    def used_bytes(self, enough: int) -> int:
        """Return the memory of the slot, as `memory.used_bytes` does."""
        return used_bytes(self.pid, enough, directories=self.directories, net=self.pid)

    def kept_bytes(self) -> int:
        """Return the bytes that a session's processes keep while they are stopped, as `memory.session_bytes` does."""
        return session_bytes(self.pid, self.initial_bytes, self.directories)


def _retrieve_exception(execution: asyncio.Task[Execution]) -> None:
    """Take note of a call's exception, so that asyncio does not log it if the caller went away."""
    if not execution.cancelled():
        execution.exception()


async def until_ended(execution: asyncio.Task[Execution], abort: asyncio.Future[None]) -> Execution:
    """Return the result of a task that must not be cancelled.

    If the caller is cancelled, `abort` is cancelled instead, and the task is awaited.
    """
    execution.add_done_callback(_retrieve_exception)
    try:
        return await asyncio.shield(execution)
    except asyncio.CancelledError:
        abort.cancel()
        await asyncio.wait([execution])
        raise


class Call:
    """One request that runs on a slot."""

    def __init__(self, slot: Slot, limits: Limits) -> None:
        self.slot = slot
        self.limits = limits
        self.out = Stream(limits.keep_bytes)
        self.err = Stream(limits.keep_bytes)
        self.stopped: Stop | None = None
        self.reply: list[bytes] | None = None
        self.start = time.monotonic()
        self.core_wait = CoreWait(slot.pid, limits.code_timeout_s)
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self.loop.create_future()
        self.kills_before = slot.group.kills() if slot.group is not None else 0
        self.id = secrets.token_hex(8).encode()  # unknown to code that an earlier cell has left running

    async def run(
        self, job: bytes, abort: asyncio.Future[None], *fds: int, on_sent: Callable[[], None] = lambda: None
    ) -> Execution:
        """Run the call to its end. Never cancel this method: use `abort`.

        Args:
            job: The bytes of the call, which only the snippet's process reads.
            abort: When it is done, the call is ended early.
            *fds: Descriptors that the snippet's process gets after its stdout and stderr.
            on_sent: Called when the descriptors were sent.

        Raises:
            SandboxError: The slot failed, the snippet's process did not come up, or the machine had no core for it in
                its time.
        """
        if self.slot.group is not None:
            self.slot.group.set_limit(self.limits.memory_bytes)
        self._send(job, fds)
        on_sent()
        for stream in (self.out, self.err):
            self.loop.add_reader(stream.read_fd, self._on_output, stream)
        self.loop.add_reader(self.slot.sock.fileno(), self._on_reply)
        clock = self.loop.call_later(
            self.limits.start_timeout_s + self.limits.code_timeout_s + ANSWER_S, self._too_late, "time_limit"
        )
        self.memory_check = self.loop.call_later(MEMORY_CHECK_S, self._check_memory)
        abort.add_done_callback(lambda _: self.stop("cancelled"))
        await self.done
        clock.cancel()
        self.memory_check.cancel()
        await self._finish()
        return self._describe()

    def _send(self, job: bytes, more: Sequence[int]) -> None:
        """Send the request to the slot. Raises SandboxError."""
        writable = memory_file(job)
        fds = [os.open(f"/proc/self/fd/{writable}", os.O_RDONLY | os.O_CLOEXEC), self.out.write_fd, self.err.write_fd]
        os.close(writable)
        try:
            socket.send_fds(
                self.slot.sock,
                [b"%s %f %f" % (self.id, self.limits.code_timeout_s, self.limits.start_timeout_s)],
                [*fds, *more],
            )
        except OSError as e:
            os.close(self.out.read_fd)
            os.close(self.err.read_fd)
            self.slot.kill()
            raise SandboxError(f"the slot did not take a request: {e.strerror}") from e
        finally:
            for fd in fds:
                os.close(fd)

    def _on_output(self, stream: Stream) -> None:
        if not stream.pull():
            self.loop.remove_reader(stream.read_fd)
        elif self.out.total + self.err.total > self.limits.flood_bytes:
            self.stop("output_flood")

    def _on_reply(self) -> None:
        try:
            message = self.slot.sock.recv(256)
        except ConnectionError:
            message = b""
        reply = message.split()
        if reply and reply[0] == self.id:
            self.reply = reply
        else:  # the slot closed its socket, or answered another request
            self.slot.usable = False
        self.loop.remove_reader(self.slot.sock.fileno())
        self.done.set_result(None)

    def _check_memory(self) -> None:
        self.core_wait.look()
        if self.slot.used_bytes(self.limits.memory_bytes) > self.limits.memory_bytes or self._killed_by_kernel():
            self.stop("memory")
        else:
            self.memory_check = self.loop.call_later(MEMORY_CHECK_S, self._check_memory)

    def _killed_by_kernel(self) -> bool:
        """Return True if the kernel killed a process of the slot for its memory. Others may live on."""
        return self.slot.group is not None and self.slot.group.kills() > self.kills_before

    def stop(self, reason: Stop) -> None:
        """Ask the slot to end the call for a reason, unless it has ended or is being stopped already."""
        if self.stopped is None and not self.done.done():
            self.stopped = reason
            with suppress(OSError):  # the slot is ending by itself, which its socket will show
                self.slot.sock.send(b"K")
            self.loop.call_later(ANSWER_S, self._too_late, reason)

    def _too_late(self, reason: Stop) -> None:
        """Kill a slot that has not answered in time."""
        if not self.done.done():
            self.stopped = self.stopped or reason
            self.slot.kill()  # `_on_reply` then sees its socket closed and ends the call

    async def _finish(self) -> None:
        """Wait for the end of a slot that did not answer, and read the remaining output."""
        if self.reply is None:
            self.slot.kill()
            await readable(self.slot.pidfd)
        elif self.reply[4] != b"1":  # the slot is not clean
            self.slot.usable = False
        for stream in (self.out, self.err):
            while stream.pull():
                pass
            self.loop.remove_reader(stream.read_fd)
            os.close(stream.read_fd)

    def _describe(self) -> Execution:
        """Return how the call ended. Raises SandboxError if that was not the snippet's doing."""
        status, reason, report = 0, b"cancel", b"R"
        if self.reply:
            status = int(self.reply[1])
            reason = self.reply[2]
            report = self.reply[3]
        if self.stopped is None and self._killed_by_kernel():
            self.stopped = "memory"
        ended: Stop | None = self.stopped or ("time_limit" if reason == b"time" else None)
        if self.reply is None and self.stopped is None:
            raise SandboxError("the slot that ran the snippet ended: killed from outside, or out of memory on the host")
        if reason == b"lost":
            raise SandboxError(
                "the session's interpreter was killed between two calls: from outside, or out of memory on the host"
            )
        # A call that was cancelled before the snippet was up leaves its slot as good as before.
        if not report.startswith(b"R") and self.stopped != "cancelled":
            self.slot.kill()
            details = (
                f"within {self.limits.start_timeout_s:g} s" if ended == "time_limit" else f"(wait status {status})"
            )
            raise SandboxError(f"the snippet's process did not come up {details}; its slot is replaced")
        if ended == "time_limit":
            self.core_wait.check()
        return Execution(
            stdout=bytes(self.out.data),
            stderr=bytes(self.err.data),
            return_code=None if ended else os.waitstatus_to_exitcode(status),
            seconds=time.monotonic() - self.start,
            compiled=b"S" not in report,
            killed=None if ended == "cancelled" else ended,
            stdout_truncated=self.out.truncated,
        )
