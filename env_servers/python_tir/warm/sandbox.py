"""A sandbox whose calls are forks of a warm interpreter.

Each call takes a free place, and in it a slot of the template that suits the call.

    "light" (the standard library)     every call except those of "full"
    "full"  (with numpy and sympy)     code or files that name one of `template.LIBRARIES`; sessions, unless
            `light_sessions`

A library that is imported otherwise, with `__import__("num" + "py")` or through a package that needs it, comes from
disk: slower (numpy 50 ms, sympy 0.25 s), and its memory counts as the snippet's. One call at a time runs in a place,
whichever its template: capacity, limits and the place's uid are those of one slot.

Covered, besides what `bwrap` lists (the same root, namespaces, limits and seccomp filter):
- A call is the only child tree of PID 1. The reply comes after all of it is dead, and /tmp, /dev/shm and the network
  hold nothing: no block, no inode, no socket. A slot that cannot prove that is replaced, not used again.
- If control groups can be used, each slot has one (`control_group`): the kernel then keeps the memory limit, also in a
  burst.
- Code reaches only the process that runs it: earlier calls are in no memory that a later one can read.
- The result is reported by a process that the snippet cannot signal, trace or talk to.
- Processes of one slot cannot use up the process limit of another.

Not covered, besides what `bwrap` lists:
- Calls of one server share a kernel user (if the server is not root) and the layout of one parent's address space.
- `memory_bytes` of address space come on top of what the warm interpreter has mapped already.
"""

from __future__ import annotations

import asyncio
import dataclasses
import marshal
import os
import socket
from collections import deque
from collections.abc import Sequence
from functools import partial

from ..isolation import job
from ..isolation.bwrap import become_subreaper, create_stage, find_bwrap, root_file_system
from ..isolation.control_group import ControlGroups
from ..isolation.supervise import memory_file
from ..limits import Limits
from ..sandbox import Execution, Sandbox, Snippet
from .call import Call, Slot, until_ended
from .container import Container
from .template import Template, needs_full


class WarmSandbox(Sandbox):
    """Runs each call in a fork of a warm interpreter."""

    def __init__(
        self,
        limits: Limits = Limits(),
        *,
        slots: int = 2,
        seccomp: bytes | None = None,
        echo_last: bool = False,
        groups: ControlGroups | None = None,
        imports: Sequence[str] = (),
        light_imports: Sequence[str] = (),
        light_sessions: bool = False,
        hidden: Sequence[str] = (),
        extra_directories: Sequence[str] = (),
    ) -> None:
        """Create the sandbox. The first call starts it.

        Args:
            limits: Default limits of a call.
            slots: Number of calls at once.
            seccomp: A BPF program of `filter_program`; None: no system calls are refused.
            echo_last: Whether a session shows the value of a last line that is an expression.
            groups: Control groups; each slot gets one.
            imports: Modules that the full template loads besides. They must start no threads.
            light_imports: The same for the light template.
            light_sessions: Whether sessions are forked from the light template.
            hidden: As in `root_file_system`.
            extra_directories: Further directories of the host that snippets may read.

        Raises:
            SandboxError: bubblewrap is not installed.
        """
        bwrap = find_bwrap()
        self.limits = limits
        self.isolation = "bwrap+seccomp" if seccomp else "bwrap"
        self._stage = create_stage(extra_directories)
        become_subreaper()
        root = root_file_system(bwrap, self._stage, limits, hidden=hidden)
        container = partial(
            Container, root, limits, slots, seccomp, sandbox_path=self._stage.sandbox_path, echo_last=echo_last
        )
        self._groups = groups
        self._light = Template(
            "light", partial(container, light=True, imports=light_imports), slots, groups, limits.memory_bytes
        )
        self._full = Template("full", partial(container, imports=imports), slots, groups, limits.memory_bytes)
        self._session_template = self._light if light_sessions else self._full
        self._free: deque[int] = deque(range(slots))
        self._waiting: deque[asyncio.Future[int]] = deque()
        self._calls: set[asyncio.Task[Execution]] = set()

    async def execute(self, snippet: Snippet, limits: Limits) -> Execution:
        """Run a snippet. Raises SandboxError."""
        return await self._execute(snippet, limits, None)

    async def converse(self, snippet: Snippet, limits: Limits, channel: socket.socket) -> Execution:
        """Run a snippet that talks to the server over a socket, its descriptor 4. It can fetch no files.

        The channel is closed here: when the call has ended, nobody holds it. Raises SandboxError.
        """
        try:
            return await self._execute(snippet, limits, channel)
        finally:
            channel.close()

    async def _execute(self, snippet: Snippet, limits: Limits, channel: socket.socket | None) -> Execution:
        is_full = snippet.program is None and needs_full((snippet.source, *snippet.files.values()))
        template = self._full if is_full else self._light
        place = await self._take()
        abort = asyncio.get_running_loop().create_future()
        call = asyncio.create_task(
            self._run(place, template, snippet, limits, abort, channel), name=f"call in place {place}"
        )
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return await until_ended(call, abort)

    async def _run(
        self,
        place: int,
        template: Template,
        snippet: Snippet,
        limits: Limits,
        abort: asyncio.Future[None],
        channel: socket.socket | None,
    ) -> Execution:
        """Run a call to its end, then give its place back. It is not cancelled with its caller."""
        try:
            program = marshal.dumps((limits.rlimits(), *snippet.parts))
            call = Call(await template.slot(place), limits)
            if channel is not None:
                return await call.run(program, abort, channel.fileno(), on_sent=channel.close)
            if not snippet.fetch:
                return await call.run(program, abort)
            fetch_fd = memory_file(b"")
            try:
                execution = await call.run(program, abort, fetch_fd)
                return dataclasses.replace(execution, **job.unpack(fetch_fd, snippet.fetch)._asdict())
            finally:
                os.close(fetch_fd)
        finally:
            self._give_back(place)

    async def close(self) -> None:
        """End all calls and containers."""
        for template in (self._light, self._full):
            template.kill_slots()
        await asyncio.gather(*self._calls, return_exceptions=True)
        for template in (self._light, self._full):
            await template.close()
        if self._groups is not None:
            self._groups.close()
        await asyncio.to_thread(self._stage.close)

    async def _take(self) -> int:
        """Wait for a free place and return its number."""
        if self._free:
            return self._free.popleft()
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._give_back(waiter.result())
            raise

    def _give_back(self, place: int) -> None:
        """Give a place to the caller that waits longest, or mark it as free."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(place)
                return
        self._free.append(place)

    async def open_session(self) -> Slot:
        """Return a slot whose interpreter keeps its state. The caller ends it. Raises SandboxError."""
        return await self._session_template.open(None)
