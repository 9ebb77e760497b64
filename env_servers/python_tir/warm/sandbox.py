"""WarmSandbox: `sandbox.Sandbox` by forks of a warm interpreter. A free place per call, and in it a slot of the
template that suits the call.

    "light" (the standard library)     every call but those of "full"
    "full"  (numpy and sympy besides)  code or files that name one of `template.LIBRARIES`; sessions, unless
            `light_sessions`

A library that is imported otherwise, `__import__("num" + "py")` or through a package that needs it, comes from disk:
slower (numpy 50 ms, sympy 0.25 s), and its memory counts as the snippet's.
One call at a time runs in a place, whichever its template: capacity, limits and the place's uid are those of one slot.

Covered, besides what `bwrap` lists (the same root, namespaces, limits and seccomp filter):
- A call is PID 1's only child tree; the reply comes after all of it is dead, and /tmp, /dev/shm and the network hold
  nothing: no block, no inode, no socket. A slot that cannot prove that is replaced, not used again.
- Where control groups can be had each slot has one (`control_group`): the kernel then keeps the memory limit, also in a
  burst.
- Code reaches only the process that runs it: earlier calls are in no memory that a later one can read.
- The result is told by a process that the snippet cannot signal, trace or talk to.
- Processes of one slot cannot use up the process limit of another.

Not covered, besides what `bwrap` lists:
- Calls of one server share a kernel user (when the server is not root) and the layout of one parent's address space.
- `memory_bytes` of address space come on top of what the warm interpreter has mapped already.
"""

from __future__ import annotations

import asyncio
import dataclasses
import marshal
import os
import shutil
import socket
from collections import deque
from collections.abc import Sequence
from functools import partial

from ..isolation import job
from ..isolation.bwrap import become_subreaper, root_file_system, stage_of
from ..isolation.control_group import ControlGroups
from ..isolation.supervise import memory_file
from ..limits import Limits
from ..sandbox import Execution, Sandbox, SandboxError, Snippet
from .call import Call, Slot, until_ended
from .container import Container
from .template import Template, needs_full


class WarmSandbox(Sandbox):
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
        shown: Sequence[str] = (),
    ) -> None:
        """Starts nothing: the first call does. `echo_last` is for sessions. `imports`: modules that the full template
        has loaded, too; they start no threads; `light_imports`: the same of the light one, from which `light_sessions`
        are forked. `hidden`: see `root_file_system`; `shown`: further directories of the host that snippets may read.

        Raises SandboxError when bubblewrap is not installed.
        """
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise SandboxError(
                "bubblewrap is not installed. Run `apt-get install bubblewrap`, or use --isolation none on a machine"
                " that may be harmed."
            )
        self.limits = limits
        self.isolation = "bwrap+seccomp" if seccomp else "bwrap"
        self._stage = stage_of(shown)
        become_subreaper()
        root = root_file_system(bwrap, self._stage, limits, hidden=hidden)
        container = partial(Container, root, limits, slots, seccomp, inside=self._stage.inside, echo_last=echo_last)
        self._groups = groups
        self._light = Template(
            "light", partial(container, light=True, imports=light_imports), slots, groups, limits.memory_bytes
        )
        self._full = Template("full", partial(container, imports=imports), slots, groups, limits.memory_bytes)
        self._of_sessions = self._light if light_sessions else self._full
        self._free: deque[int] = deque(range(slots))
        self._waiting: deque[asyncio.Future[int]] = deque()
        self._turns: set[asyncio.Task[Execution]] = set()

    async def execute(self, snippet: Snippet, limits: Limits) -> Execution:
        return await self._execute(snippet, limits, None)

    async def converse(self, snippet: Snippet, limits: Limits, channel: socket.socket) -> Execution:
        """`execute`, with `channel` as descriptor 4 of the snippet, which fetches no files. It is closed here: once the
        call has ended, nobody holds it."""
        try:
            return await self._execute(snippet, limits, channel)
        finally:
            channel.close()

    async def _execute(self, snippet: Snippet, limits: Limits, channel: socket.socket | None) -> Execution:
        is_full = snippet.program is None and needs_full((snippet.source, *snippet.files.values()))
        template = self._full if is_full else self._light
        place = await self._take()
        given_up = asyncio.get_running_loop().create_future()
        turn = asyncio.create_task(
            self._turn(place, template, snippet, limits, given_up, channel), name=f"call in place {place}"
        )
        self._turns.add(turn)
        turn.add_done_callback(self._ended)
        return await until_ended(turn, given_up)

    async def _turn(
        self,
        place: int,
        template: Template,
        snippet: Snippet,
        limits: Limits,
        given_up: asyncio.Future[None],
        channel: socket.socket | None,
    ) -> Execution:
        """Holds the place until its call has ended, however often and impatiently the caller is cancelled."""
        try:
            program = marshal.dumps((limits.rlimits(), *snippet.parts))
            call = Call(await template.slot(place), limits)
            if channel is not None:
                return await call.run(program, given_up, channel.fileno(), sent=channel.close)
            if not snippet.fetch:
                return await call.run(program, given_up)
            fetch_fd = memory_file(b"")
            try:
                execution = await call.run(program, given_up, fetch_fd)
                return dataclasses.replace(execution, **job.unpack(fetch_fd, snippet.fetch)._asdict())
            finally:
                os.close(fetch_fd)
        finally:
            self._give_back(place)

    def _ended(self, turn: asyncio.Task[Execution]) -> None:
        self._turns.discard(turn)
        if not turn.cancelled():
            turn.exception()  # seen, also when its caller went away

    async def close(self) -> None:
        for template in (self._light, self._full):
            template.kill_slots()
        await asyncio.gather(*self._turns, return_exceptions=True)
        for template in (self._light, self._full):
            await template.close()
        if self._groups is not None:
            self._groups.close()
        await asyncio.to_thread(self._stage.close)

    async def _take(self) -> int:
        if self._free:
            return self._free.popleft()
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(turn.result())
            raise

    def _give_back(self, place: int) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(place)
                return
        self._free.append(place)

    async def open_session(self) -> Slot:
        """A slot whose interpreter keeps its state; the caller ends it. Raises SandboxError."""
        return await self._of_sessions.open(None)
