"""Supervise one sandbox process from its start to the end of its last descendant, with events on the loop and no
threads.

    argv + memory file with the code -> Popen -> stdout, stderr, status pipe, pidfd -> Execution

Output is read while the program runs and capped as it comes. The snippet's clock starts when the status pipe says that
its process is up. However a run ends (the program's own end, clock, flood, memory, cancellation), the *init* of the
sandbox is then killed: the kernel kills every process of its pid namespace, and reports the init's exit only when all
of them are gone. That exit is the proof, and it is always awaited. A sandbox without an init has a warden that does it
(landlock), or is one process group, killed as such (none).

The status pipe carries `{ "child-pid": N, ... }` of bubblewrap (the init), then "R" and "S" of the runner.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

from ..limits import Limits
from ..sandbox import Execution, SandboxError
from .control_group import ControlGroup
from .core_wait import CoreWait
from .memory import files, host_tcp_bytes, used_bytes
from .tree import tasks

MEMORY_CHECK_S = 0.25
"""Seconds between two checks of the memory of all processes together. A short snippet is never checked. The kernel has
no event for it."""
TMPFS = "/tmp", "/dev/shm"
"""Directories where a sandbox with an init has its own file systems in memory."""
WARDEN_S = 3.0
"""Seconds that a warden may take to end the processes below it, before it is killed itself."""
_READ = 1 << 16
_STATUS_BYTES = 1024
_INIT_PID = re.compile(rb'"child-pid": (\d+)')

Stop = Literal["start", "time_limit", "output_flood", "memory"]


class Stream:
    """One output pipe, of which the first `keep` bytes are kept and all are counted."""

    def __init__(self, keep: int) -> None:
        self.read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.read_fd, False)
        self.keep = keep
        self.data = bytearray()
        self.total = 0

    def pull(self) -> bool:
        """Read once. Return False if there is no more data now."""
        try:
            part = os.read(self.read_fd, _READ)
        except BlockingIOError:
            return False
        self.total += len(part)
        self.data += part[: self.keep - len(self.data)]
        return bool(part)

    @property
    def truncated(self) -> bool:
        """True if more was written than is kept."""
        return self.total > len(self.data)


def memory_file(data: bytes) -> int:
    """Return a descriptor of an anonymous file with this content, positioned at its start. Only its holders can read
    it."""
    fd = os.memfd_create("tir", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


async def supervise(
    argv: Callable[[int, int], Sequence[str]],
    stdin: bytes,
    limits: Limits,
    *,
    pass_fds: Sequence[int],
    env: dict[str, str] | None,
    warden: bool,
    group: ControlGroup | None,
) -> Execution:
    """Run a command with `stdin` as a memory file and return how it ended.

    Args:
        argv: Returns the command from two descriptors, which both lead to the status pipe: the runner's and
            bubblewrap's.
        stdin: Content of stdin.
        limits: Limits of the run.
        pass_fds: Descriptors that the command inherits.
        env: Environment variables of the command.
        warden: True if the process itself ends everything below it, before it ends and when it gets SIGTERM.
        group: An empty control group in which the command runs. A kill of the kernel in it counts as error_type memory.

    Raises:
        SandboxError: The command cannot be started, its interpreter does not come up, or the machine had no core for it
            in its time.
    """
    streams = Stream(limits.keep_bytes), Stream(limits.keep_bytes), Stream(_STATUS_BYTES)
    out, err, status = streams
    stdin_fd = memory_file(stdin)
    info_fd = os.dup(status.write_fd)
    try:
        command = argv(status.write_fd, info_fd)
        process = subprocess.Popen(
            group.command(command) if group is not None else command,
            stdin=stdin_fd,
            stdout=out.write_fd,
            stderr=err.write_fd,
            pass_fds=(status.write_fd, info_fd, *pass_fds),
            env=env,
            start_new_session=True,
        )
    except OSError as e:
        for stream in streams:
            os.close(stream.read_fd)
        raise SandboxError(f"cannot start a sandbox process: {e.strerror}") from e
    finally:
        for fd in (stdin_fd, info_fd, *(stream.write_fd for stream in streams)):
            os.close(fd)
    return await _Run(process, streams, limits, warden, group).result()


class _Run:
    """One running command, with the callbacks of its descriptors and timers."""

    def __init__(
        self,
        process: subprocess.Popen,
        streams: tuple[Stream, Stream, Stream],
        limits: Limits,
        warden: bool,
        group: ControlGroup | None,
    ) -> None:
        self.process = process
        self.streams = streams
        self.limits = limits
        self.warden = warden
        self.group = group
        self.out, self.err, self.status = streams
        self.start = time.monotonic()
        self.stopped: Stop | None = None
        self.loop = asyncio.get_running_loop()
        self.all_ended: asyncio.Future[None] = self.loop.create_future()
        """Set when no process of the sandbox is left."""
        self.outer_fd = os.pidfd_open(process.pid)
        self.init_fd = -1
        self.init_pid: int | None = None
        self.directories: list[int] | None = None
        """Descriptors of the tmpfs mounts below an init; None until memory is checked for the first time."""
        self.clock = self.loop.call_later(limits.start_timeout_s, self.stop, "start")
        self.memory_check: asyncio.TimerHandle | None = None
        self.core_wait: CoreWait | None = None
        """None until the snippet is up."""
        self.loop.add_reader(self.outer_fd, self.on_outer_exit)
        self.loop.add_reader(self.status.read_fd, self.on_status)
        for stream in (self.out, self.err):
            self.loop.add_reader(stream.read_fd, self.on_output, stream)

    async def result(self) -> Execution:
        """Wait for the end of all processes and return how the run ended."""
        try:
            await asyncio.shield(self.all_ended)
        finally:
            await asyncio.shield(asyncio.create_task(self.tear_down(), name=f"end sandbox {self.process.pid}"))
        return self.describe()

    def on_output(self, stream: Stream) -> None:
        """Read output, and stop the run if it is a flood."""
        if not stream.pull():
            self.loop.remove_reader(stream.read_fd)
        elif self.out.total + self.err.total > self.limits.flood_bytes:
            self.stop("output_flood")

    def on_status(self) -> None:
        """Read the status pipe: find the init, and start the clock of the snippet when its interpreter is up."""
        if not self.status.pull():
            self.loop.remove_reader(self.status.read_fd)
            return
        if self.init_fd < 0 and (match := _INIT_PID.search(self.status.data)):
            with suppress(ProcessLookupError):  # it has ended already
                self.init_pid = int(match[1])
                self.init_fd = os.pidfd_open(self.init_pid)
        if self.memory_check is None and _is_up(self.status.data):
            self.clock.cancel()
            self.clock = self.loop.call_later(self.limits.code_timeout_s, self.stop, "time_limit")
            self.core_wait = CoreWait(self.process.pid, self.limits.code_timeout_s)
            self.memory_check = self.loop.call_later(MEMORY_CHECK_S, self.check_memory)

    def check_memory(self) -> None:
        """Stop the run if its processes exceed a limit that the kernel does not keep; otherwise check again later."""
        if self.core_wait is not None:
            self.core_wait.look()
        if self.directories is None:
            self.directories = []
            for name in TMPFS if self.init_pid else ():
                with suppress(OSError):  # it has ended
                    self.directories.append(os.open(f"/proc/{self.init_pid}/root{name}", os.O_PATH | os.O_CLOEXEC))
        limit = self.limits.memory_bytes
        used = used_bytes(
            self.process.pid, limit, directories=self.directories, net=self.init_pid, tcp_bytes=host_tcp_bytes()
        )
        too_many = self.warden and tasks(self.process.pid) > self.limits.processes  # elsewhere the kernel counts them
        too_many = too_many or any(files(directory) > self.limits.files for directory in self.directories)
        if used > limit or too_many or self.killed_by_kernel():
            self.stop("memory")
        else:
            self.memory_check = self.loop.call_later(MEMORY_CHECK_S, self.check_memory)

    def killed_by_kernel(self) -> bool:
        """Return True if the kernel killed one of the processes for their memory. The others may live on."""
        return self.group is not None and self.group.kills() > 0

    def on_outer_exit(self) -> None:
        """Handle the exit of the command: its init, if there is one, is killed and awaited."""
        self.on_status()
        if self.init_fd < 0:
            self.kill_group()  # what the command left in the background; before `poll`, which frees the group's id
        if self.process.poll() is None:
            return
        self.loop.remove_reader(self.outer_fd)
        if self.init_fd < 0:
            self.all_ended.set_result(None)
        else:
            self.kill_init()
            self.loop.add_reader(self.init_fd, self.on_init_exit)

    def on_init_exit(self) -> None:
        """Handle the exit of the init, after which no process is left."""
        self.loop.remove_reader(self.init_fd)
        with suppress(ChildProcessError):  # the outer process has waited for it already
            os.waitid(os.P_PIDFD, self.init_fd, os.WEXITED)
        self.all_ended.set_result(None)

    def stop(self, reason: Stop) -> None:
        """Stop the run for a reason, unless it has ended or is being stopped already."""
        if self.stopped is None and self.process.returncode is None:
            self.stopped = reason
            self.kill()

    def kill(self) -> None:
        """Kill everything. A warden gets WARDEN_S seconds to do it itself."""
        self.kill_init()
        if self.warden and self.process.poll() is None:
            self.process.terminate()
            self.loop.call_later(WARDEN_S, self.kill_group)
        else:
            self.kill_group()

    def kill_group(self) -> None:
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def kill_init(self) -> None:
        if self.init_fd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.init_fd, signal.SIGKILL)

    async def tear_down(self) -> None:
        """Kill what is left, wait for its end, read the remaining output, and release all descriptors and timers."""
        if not self.all_ended.done():
            self.on_status()
            self.kill()
            await self.all_ended
        self.clock.cancel()
        if self.memory_check is not None:
            self.memory_check.cancel()
        for stream in self.streams:
            while stream.pull():
                pass
            self.loop.remove_reader(stream.read_fd)
            os.close(stream.read_fd)
        os.close(self.outer_fd)
        for fd in self.directories or ():
            os.close(fd)
        if self.init_fd >= 0:
            os.close(self.init_fd)

    def describe(self) -> Execution:
        """Return how the run ended.

        Raises:
            SandboxError: The interpreter never came up, or had no core (NoCore).
        """
        report = self.status.data
        if self.stopped is None and self.killed_by_kernel():
            self.stopped = "memory"
        if not _is_up(report):
            errors = self.err.data[-2000:].decode("utf-8", "replace").strip()
            within = f" within {self.limits.start_timeout_s:g} s" if self.stopped == "start" else ""
            raise SandboxError(
                f"the interpreter did not start{within}: {errors or f'exit status {self.process.returncode}'}"
            )
        if self.stopped == "time_limit" and self.core_wait is not None:
            self.core_wait.check()
        return Execution(
            stdout=bytes(self.out.data),
            stderr=bytes(self.err.data),
            return_code=None if self.stopped else _return_code(self.process.returncode),
            seconds=time.monotonic() - self.start,
            compiled=b"S\n" not in report,
            killed=None if self.stopped == "start" else self.stopped,
            stdout_truncated=self.out.truncated,
        )


def _is_up(report: bytearray) -> bool:
    """Return True if the runner has reported that the limits are set."""
    return b"R\n" in report


def _return_code(status: int) -> int:
    """Return an exit status as `subprocess` has it: -N for death by signal N, which bubblewrap reports as 128 + N."""
    return 128 - status if 128 < status <= 192 else status
