"""Call: one request on one slot, from the descriptors that go in to the proof that nothing of it is left. Events on the
loop; no threads.

    code -> read-only memory file + two pipes -> slot -> reply: every process of the call is dead, its files are gone ->
    Execution

Output is read while the snippet runs and capped as it comes. The slot keeps the snippet's clock, which begins when the
snippet is up: however little time it was given, using it up is its own fault; not to come up within
`Limits.start_timeout_s` is the host's. The server asks it to end a call (flood, memory, cancellation) and kills the
slot itself, with all its processes, when no answer comes: `ended by us` is then the result; a slot that ends by itself
is a SandboxError.
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
from ..isolation.memory import private_bytes, session_bytes, used_bytes
from ..isolation.supervise import MEMORY_CHECK_S, Stream, memory_file
from ..limits import Limits
from ..sandbox import Execution, SandboxError
from .container import readable

ANSWER_S = 3.0
"""How long after its deadline, or after it was asked to end a call, a slot may take to answer."""

Stop = Literal["time_limit", "output_flood", "memory", "cancelled"]


@dataclass(eq=False, slots=True)
class Slot:
    """Our end of one slot."""

    sock: socket.socket
    pid: int
    pidfd: int
    directories: list[int]
    """Descriptors of its tmpfs mounts, by which is read what they hold."""
    group: ControlGroup | None = None
    """Its own, where the server may make such."""
    usable: bool = True
    own_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.own_bytes = private_bytes(self.pid)

    def kill(self) -> None:
        self.usable = False
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    async def end(self) -> None:
        """Kill it and wait until no process of its namespace is left: the kernel reports a PID 1's end only then."""
        self.kill()
        await readable(self.pidfd)
        self.close()

    def close(self) -> None:
        self.sock.close()
        for fd in (self.pidfd, *self.directories):
            os.close(fd)
        if self.group is not None:
            self.group.remove()

    def used_bytes(self, enough: int) -> int:
        """See `memory.used_bytes`."""
        return used_bytes(self.pid, enough, directories=self.directories, net=self.pid)

    def kept_bytes(self) -> int:
        """What a session's processes keep while they are stopped. See `memory.session_bytes`."""
        return session_bytes(self.pid, self.own_bytes, self.directories)


async def until_ended(turn: asyncio.Task[Execution], given_up: asyncio.Future[None]) -> Execution:
    """The result of `turn`. Cancelled: `given_up` is, and `turn` is waited for, never cancelled itself."""
    try:
        return await asyncio.shield(turn)
    except asyncio.CancelledError:
        given_up.cancel()
        await asyncio.wait([turn])
        raise


class Call:
    def __init__(self, slot: Slot, limits: Limits) -> None:
        self.slot = slot
        self.limits = limits
        self.out = Stream(limits.keep_bytes)
        self.err = Stream(limits.keep_bytes)
        self.stopped: Stop | None = None
        self.reply: list[bytes] | None = None
        self.start = time.monotonic()
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self.loop.create_future()
        self.kills_before = slot.group.kills() if slot.group is not None else 0
        self.id = secrets.token_hex(8).encode()  # what an earlier cell has left running cannot answer for this one

    async def run(
        self, job: bytes, given_up: asyncio.Future[None], *fds: int, sent: Callable[[], None] = lambda: None
    ) -> Execution:
        """`job` is for the snippet's process alone; `fds` go to it after its stdout and stderr, then `sent` is called.
        `given_up` ends it early: never cancel this."""
        if self.slot.group is not None:
            self.slot.group.bound(self.limits.memory_bytes)
        self._send(job, fds)
        sent()
        for stream in (self.out, self.err):
            self.loop.add_reader(stream.read_fd, self._on_output, stream)
        self.loop.add_reader(self.slot.sock.fileno(), self._on_reply)
        clock = self.loop.call_later(
            self.limits.start_timeout_s + self.limits.code_timeout_s + ANSWER_S, self._too_late, "time_limit"
        )
        self.memory_check = self.loop.call_later(MEMORY_CHECK_S, self._check_memory)
        given_up.add_done_callback(lambda _: self.stop("cancelled"))
        await self.done
        clock.cancel()
        self.memory_check.cancel()
        await self._finish()
        return self._describe()

    def _send(self, job: bytes, more: Sequence[int]) -> None:
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
        else:  # closed, or out of step: an answer that is not this call's is nobody's
            self.slot.usable = False
        self.loop.remove_reader(self.slot.sock.fileno())
        self.done.set_result(None)

    def _check_memory(self) -> None:
        if self.slot.used_bytes(self.limits.memory_bytes) > self.limits.memory_bytes or self._killed_by_kernel():
            self.stop("memory")
        else:
            self.memory_check = self.loop.call_later(MEMORY_CHECK_S, self._check_memory)

    def _killed_by_kernel(self) -> bool:
        """For its memory, whichever process of the slot the kernel chose: the others may live on."""
        return self.slot.group is not None and self.slot.group.kills() > self.kills_before

    def stop(self, reason: Stop) -> None:
        if self.stopped is None and not self.done.done():
            self.stopped = reason
            with suppress(OSError):  # it is ending by itself: its socket will tell
                self.slot.sock.send(b"K")
            self.loop.call_later(ANSWER_S, self._too_late, reason)

    def _too_late(self, reason: Stop) -> None:
        if not self.done.done():
            self.stopped = self.stopped or reason
            self.slot.kill()  # its socket then ends the call

    async def _finish(self) -> None:
        if self.reply is None:
            self.slot.kill()
            await readable(self.slot.pidfd)
        elif self.reply[4] != b"1":
            self.slot.usable = False
        for stream in (self.out, self.err):
            while stream.pull():
                pass
            self.loop.remove_reader(stream.read_fd)
            os.close(stream.read_fd)

    def _describe(self) -> Execution:
        status, reason, report = (
            (int(self.reply[1]), self.reply[2], self.reply[3]) if self.reply else (0, b"cancel", b"R")
        )
        if self.stopped is None and self._killed_by_kernel():
            self.stopped = "memory"
        ended: Stop | None = self.stopped or ("time_limit" if reason == b"time" else None)
        if self.reply is None and self.stopped is None:
            raise SandboxError("the slot that ran the snippet ended: killed from outside, or out of memory on the host")
        if reason == b"lost":
            raise SandboxError(
                "the session's interpreter was killed between two calls: from outside, or out of memory on the host"
            )
        # ended before it was up, by us: its slot is as good as before
        if not report.startswith(b"R") and self.stopped != "cancelled":
            self.slot.kill()
            late = f"within {self.limits.start_timeout_s:g} s" if ended == "time_limit" else f"(wait status {status})"
            raise SandboxError(f"the snippet's process did not come up {late}; its slot is replaced")
        return Execution(
            stdout=bytes(self.out.data),
            stderr=bytes(self.err.data),
            return_code=None if ended else os.waitstatus_to_exitcode(status),
            seconds=time.monotonic() - self.start,
            compiled=b"S" not in report,
            killed=None if ended == "cancelled" else ended,
            stdout_truncated=self.out.truncated,
            stderr_truncated=self.err.truncated,
        )
