"""Start bubblewrap with the master in it, and ask the master for slots.

A server that runs as root drops to an unprivileged uid first and maps a range of uids, so that the snippets of each
slot have a uid of their own (sessions share one). Any other user maps only itself. Where a uid is shared, each slot
counts its processes in a user namespace of its own.
"""

from __future__ import annotations

import asyncio
import json
import marshal
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..isolation.bwrap import UNPRIVILEGED_UID, site_packages
from ..isolation.job import compiled
from ..isolation.supervise import memory_file
from ..limits import Limits
from ..sandbox import SandboxError

START_TIMEOUT_S = 300.0
"""Seconds for bubblewrap, imports and warm-up. They take 1 s on a quiet machine."""
SLOT_TIMEOUT_S = 300.0
"""Seconds within which a new slot must answer."""
_CAPABILITIES = "SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "SETUID", "SETGID", "SETPCAP", "KILL", "DAC_OVERRIDE"
"""Capabilities that the master needs to make slots, within the container's user namespace. Snippets have none."""
OOM_SCORE_ADJ = 500
"""Makes the kernel kill snippets first when the host runs out of memory. An unprivileged process may raise it, not
lower it."""
_HERE = Path(__file__).parent
_CHILD_PID = re.compile(rb'"child-pid": (\d+)')
_CREDENTIALS = struct.Struct("3i")
_FD = struct.Struct("i")
_FDS = 4
"""Largest number of descriptors that come with a first message."""


def _programs(seccomp: bytes | None) -> bytes:
    """Return the programs that run inside, compiled and marshalled."""
    sources = {
        name: _HERE / f"{name}.py" for name in ("master", "slot", "session", "freeze", "notebook", "kernel", "warmup")
    }
    sources["runner"] = _HERE.parent / "isolation" / "runner.py"
    programs: dict[str, Any] = {name: compiled(path) for name, path in sources.items()}
    return marshal.dumps({**programs, "seccomp": seccomp})


class Container:
    """A container with one master. Call `start` once; when it is not `alive` any more, create another."""

    def __init__(
        self,
        bwrap: Sequence[str],
        limits: Limits,
        slots: int,
        seccomp: bytes | None,
        *,
        sandbox_path: Callable[[str], str],
        echo_last: bool = False,
        light: bool = False,
        imports: Sequence[str] = (),
    ) -> None:
        """Describe a container; `start` starts it.

        Args:
            bwrap: The bubblewrap command with the options of `root_file_system`.
            limits: Limits, for the slots' file systems and for sessions.
            slots: Number of slots, without those of sessions.
            seccomp: A BPF program of `filter_program`.
            sandbox_path: `Stage.sandbox_path`.
            echo_last: Whether a session shows the value of a last line that is an expression.
            light: Whether the master imports only the standard library.
            imports: Modules that the master imports besides, if they are installed.
        """
        self._bwrap = bwrap
        self._limits = limits
        self._slots = slots
        self._programs = _programs(seccomp)
        self._echo_last = echo_last
        self._sandbox_path = sandbox_path
        self._light = light
        self._imports = list(imports)
        self._control: socket.socket | None = None
        self._process: subprocess.Popen | None = None
        self._master = -1  # pidfd
        self._log = -1
        self._log_of_killed = ""

    async def start(self) -> None:
        """Start bubblewrap and wait until the master is ready. Raises SandboxError with the output of bubblewrap or the
        master."""
        as_root = os.geteuid() == 0
        self._control, master_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        info_r, info_w = os.pipe2(os.O_CLOEXEC)
        mapped_r, mapped_w = os.pipe2(os.O_CLOEXEC)
        programs = memory_file(self._programs)
        self._log = os.memfd_create("tir-log", os.MFD_CLOEXEC)
        drop = (
            ["/usr/bin/setpriv", f"--reuid={UNPRIVILEGED_UID}", f"--regid={UNPRIVILEGED_UID}", "--clear-groups", "--"]
            if as_root
            else []
        )
        user = ["--userns-block-fd", str(mapped_r)] if as_root else ["--uid", "0", "--gid", "0"]
        caps = [arg for name in _CAPABILITIES for arg in ("--cap-add", f"CAP_{name}")]
        boot = (
            f"import marshal, os; programs = marshal.loads(os.read(0, {len(self._programs)})); exec(programs['master'])"
        )
        python = [
            self._sandbox_path(sys.executable), "-s", "-S", "-P", "-X", "utf8", "-c", boot, str(master_socket.fileno()),
            self._options(as_root),
        ]  # fmt: skip
        try:
            self._process = subprocess.Popen(
                [*drop, *self._bwrap, *user, *caps, "--as-pid-1", "--info-fd", str(info_w), "--", *python],
                stdin=programs,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                pass_fds=(master_socket.fileno(), info_w, mapped_r),
                env={},
                start_new_session=True,
            )
            os.close(info_w)
            info_w = -1
            async with asyncio.timeout(START_TIMEOUT_S):
                await readable(info_r)
                match = _CHILD_PID.search(os.read(info_r, 4096))  # the other fields come in later writes
                if match is None:
                    raise ConnectionError("bubblewrap named no process")
                child = int(match[1])
                self._master = os.pidfd_open(child)
                if as_root:
                    self._map_uids(child)
                os.close(mapped_w)
                mapped_w = -1
                master_socket.close()
                await hello(self._control)
            with suppress(OSError):  # a container may forbid it: the host's OOM killer then chooses by size alone
                Path(f"/proc/{child}/oom_score_adj").write_text(str(OOM_SCORE_ADJ))
        except (OSError, TimeoutError) as e:
            self.kill()
            fault = self.log_tail() or str(e) or f"no answer within {START_TIMEOUT_S:g} s"
            raise SandboxError(f"the warm container did not start: {fault}") from e
        finally:
            master_socket.close()
            for fd in (info_r, info_w, mapped_r, mapped_w, programs):
                if fd >= 0:
                    os.close(fd)

    def _options(self, as_root: bool) -> str:
        """Return the options of the master as JSON."""
        options = {
            "paths": [*map(self._sandbox_path, site_packages())],
            "uid_range": as_root,
            "tmpfs": f"size={self._limits.file_bytes},nr_inodes={self._limits.files},mode=1777",
            "echo_last": self._echo_last,
            "light": self._light,
            "imports": self._imports,
            "session_uid": self._slots + 1 if as_root else 0,
            "session_limits": self._limits.rlimits(cpu=False),
        }
        return json.dumps(options)

    def _map_uids(self, child: int) -> None:
        """Map the range of uids and gids: the master's, one for each slot, and one for all sessions."""
        for kind in ("uid", "gid"):
            Path(f"/proc/{child}/{kind}_map").write_text(f"0 {UNPRIVILEGED_UID} {self._slots + 2}\n")

    async def open_slot(self, index: int | None) -> tuple[socket.socket, int, int, list[int]]:
        """Return socket, process id, pidfd and tmpfs descriptors of a new slot.

        Args:
            index: Number of the slot; None for a session.

        Raises:
            SandboxError: The master did not make a slot.
        """
        assert self._control is not None, "start() comes first"
        server_end, slot_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server_end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        try:
            with slot_end:
                socket.send_fds(
                    self._control, [b"session" if index is None else b"slot %d" % index], [slot_end.fileno()]
                )
            async with asyncio.timeout(SLOT_TIMEOUT_S):
                pid, directories = await hello(server_end)
            return server_end, pid, os.pidfd_open(pid), directories
        except (OSError, TimeoutError) as e:
            server_end.close()
            fault = self.log_tail() or str(e) or f"no answer within {SLOT_TIMEOUT_S:g} s"
            raise SandboxError(f"no new slot: {fault}") from e

    @property
    def alive(self) -> bool:
        """True while the master runs.

        Both signs are needed: a master that is killed closes its socket before its slots die, and the kernel reports
        its own end only after theirs.
        """
        return (
            self._control is not None
            and self._master >= 0
            and not (has_ended(self._master) or has_ended(self._control.fileno()))
        )

    def log_tail(self) -> str:
        """Return the end of what bubblewrap, master and slots wrote to stderr."""
        if self._log < 0:
            return self._log_of_killed
        size = os.fstat(self._log).st_size
        return os.pread(self._log, 2000, max(0, size - 2000)).decode("utf-8", "replace").strip()

    def kill(self) -> None:
        """Kill the master, with which the kernel kills every process of the container. Returns when they are gone."""
        if self._process is not None:
            if self._master >= 0:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._master, signal.SIGKILL)
            else:
                self._process.kill()
            self._process.wait()
        if self._control is not None:
            self._control.close()
        self._log_of_killed = self.log_tail()
        for fd in (self._master, self._log):
            if fd >= 0:
                os.close(fd)
        self._master = -1
        self._log = -1


async def readable(fd: int) -> None:
    """Wait until a descriptor can be read."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def on_readable() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(fd, on_readable)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


async def hello(sock: socket.socket) -> tuple[int, list[int]]:
    """Wait for the first message on a socket. Return the process id of its sender, and the descriptors in it.

    Raises:
        OSError: The sender is gone.
    """
    await readable(sock.fileno())
    message, ancillary, _, _ = sock.recvmsg(
        64, socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(_FDS * _FD.size), socket.MSG_CMSG_CLOEXEC
    )
    if not message:
        raise ConnectionError("")
    data = {kind: content for _, kind, content in ancillary}
    pid = _CREDENTIALS.unpack(data[socket.SCM_CREDENTIALS])[0]  # filled in by the kernel, so it can be believed
    return pid, [fd for (fd,) in _FD.iter_unpack(data.get(socket.SCM_RIGHTS, b""))]


def has_ended(fd: int) -> bool:
    """A pidfd's process; the other side of a socket that nothing more is sent on."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
