"""WarmSandbox: `sandbox.Sandbox` by forks of a warm interpreter. A free slot per call; what died is replaced before the next call.

Covered, besides what `bwrap` lists (the same root, namespaces, limits and seccomp filter):
- A call is PID 1's only child tree; the reply comes after all of it is dead and /tmp, /dev/shm are empty. A slot that cannot prove
  that is replaced, not used again.
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
import logging
import marshal
import os
import shutil
import sys
from collections import deque
from collections.abc import Mapping, Sequence

from .. import job
from ..bwrap import UNPRIVILEGED_UID, become_subreaper, root_file_system, site_packages
from ..limits import Limits
from ..sandbox import NO_FILES, Execution, SandboxError
from ..stage import Stage
from ..supervise import memory_file
from .call import Call, Slot, until_ended
from .container import Container, has_ended

log = logging.getLogger(__name__)


class WarmSandbox:
    def __init__(self, limits: Limits = Limits(), *, slots: int = 2, seccomp: bytes | None = None, echo_last: bool = False) -> None:
        """Starts nothing: the first call does. `echo_last` is for sessions. Raises SandboxError when bubblewrap is not installed."""
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise SandboxError("bubblewrap is not installed. Run `apt-get install bubblewrap`, or use --isolation none on a machine that may be harmed.")
        self.limits, self._seccomp, self._slots, self._echo_last = limits, seccomp, slots, echo_last
        self.isolation = "bwrap+seccomp" if seccomp else "bwrap"
        self._stage = Stage([sys.base_prefix, *site_packages()], uid=UNPRIVILEGED_UID)
        self._bwrap = root_file_system(bwrap, self._stage, limits)
        become_subreaper()
        self._container: Container | None = None
        self._starting = asyncio.Lock()
        self._places: list[Slot | None] = [None] * slots
        self._free: deque[int] = deque(range(slots))
        self._waiting: deque[asyncio.Future[int]] = deque()
        self._turns: set[asyncio.Task[Execution]] = set()

    async def run(
        self,
        code: str,
        *,
        stdin: bytes = b"",
        files: Mapping[str, bytes] = NO_FILES,
        fetch: Sequence[str] = (),
        timeout_s: float | None = None,
        memory_bytes: int | None = None,
        keep_bytes: int | None = None,
    ) -> Execution:
        limits = self.limits.for_call(timeout_s, memory_bytes, keep_bytes)
        program = marshal.dumps((limits.rlimits(), code.encode("utf-8", "surrogatepass"), stdin, list(files.items()), list(fetch)))
        place, given_up = await self._take(), asyncio.get_running_loop().create_future()
        turn = asyncio.create_task(self._turn(place, limits, program, fetch, given_up), name=f"call on slot {place}")
        self._turns.add(turn)
        turn.add_done_callback(self._ended)
        return await until_ended(turn, given_up)

    async def _turn(self, place: int, limits: Limits, program: bytes, fetch: Sequence[str], given_up: asyncio.Future[None]) -> Execution:
        """Holds the place until its call has ended, however often and impatiently the caller is cancelled."""
        try:
            call = Call(await self._slot(place), limits)
            if not fetch:
                return await call.run(program, given_up)
            fetch_fd = memory_file(b"")
            try:
                execution = await call.run(program, given_up, fetch_fd)
                return dataclasses.replace(execution, files=job.unpack(fetch_fd, fetch))
            finally:
                os.close(fetch_fd)
        finally:
            self._give_back(place)

    def _ended(self, turn: asyncio.Task[Execution]) -> None:
        self._turns.discard(turn)
        if not turn.cancelled():
            turn.exception()  # seen, also when its caller went away

    async def close(self) -> None:
        for slot in filter(None, self._places):
            slot.kill()
        await asyncio.gather(*self._turns, return_exceptions=True)
        for place, slot in enumerate(self._places):
            if slot is not None:
                await slot.end()
                self._places[place] = None
        if self._container is not None:
            self._container.kill()
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

    async def _slot(self, place: int) -> Slot:
        slot = self._places[place]
        if slot is not None:
            if slot.usable and not has_ended(slot.pidfd):
                return slot
            self._places[place] = None
            await slot.end()
        slot = self._places[place] = Slot(*await (await self._running()).open_slot(place))
        return slot

    async def open_session(self) -> Slot:
        """A slot whose interpreter keeps its state; the caller ends it. Raises SandboxError."""
        return Slot(*await (await self._running()).open_slot(None))

    async def _running(self) -> Container:
        async with self._starting:
            if self._container is None or not self._container.alive:
                if self._container is not None:
                    log.error("the warm container ended; starting another. It said: %s", self._container.said() or "nothing")
                    self._container.kill()
                self._container = Container(self._bwrap, self.limits, self._slots, self._seccomp, echo_last=self._echo_last)
                await self._container.start()
        return self._container
