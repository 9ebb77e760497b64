"""Interpreters that keep their state from call to call, one per session, within a cap and a memory budget.

    Notebook.run(code) -> Cell(execution, restarted, alive); the interpreter starts with the first call, and between two
                          calls nothing runs
    Notebook.close()   -> every process of it is dead, its files are gone

A session is isolated as in `WarmSandbox`: it has its own namespaces, /tmp, process count and limits, and sees nothing
of another one. A call that exceeds a limit or is cancelled, and code that ends or breaks its interpreter, lose the
session's state: the next call finds a new interpreter, and `restarted` says so once. An interpreter that dies between
two calls is a SandboxError, never the model's fault: it is stopped then (`freeze`), and nothing that it has set up can
end it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import NamedTuple

from env_servers.admission import CapacityFull

from ..limits import Limits
from ..sandbox import Execution
from .call import Call, Slot, until_ended
from .sandbox import WarmSandbox

NEW_BYTES = 16 << 20
"""Bytes for which an interpreter counts before its first call has ended: itself, its slot, and pages that it will
copy."""
RETRY_AFTER_S = 1
"""Seconds after which a refused caller may try again."""


class Cell(NamedTuple):
    """Result of one call.

    Attributes:
        execution: How the call ended.
        restarted: True if state of earlier calls is gone, by this call or before it, and no earlier cell has said so.
        alive: True if the next call will find the state that this one left.
    """

    execution: Execution
    restarted: bool
    alive: bool


class Notebooks:
    """The interpreters of one server."""

    def __init__(self, sandbox: WarmSandbox, *, cap: int, memory_bytes: int) -> None:
        """Create an empty collection.

        Args:
            sandbox: Opens the sessions.
            cap: Number of interpreters at once.
            memory_bytes: Bytes of all interpreters, measured after each call, beyond which no new one starts.
        """
        self.sandbox = sandbox
        self.cap = cap
        self.memory_bytes = memory_bytes
        self._bytes_of: dict[Notebook, int] = {}

    def __len__(self) -> int:
        return len(self._bytes_of)

    @property
    def held_bytes(self) -> int:
        """Bytes that all interpreters hold together, by the last measurement of each."""
        return sum(self._bytes_of.values())

    def admit(self, notebook: Notebook) -> None:
        """Count a new interpreter. Raises CapacityFull if others must end first."""
        if len(self._bytes_of) >= self.cap:
            raise CapacityFull(f"{len(self._bytes_of)} sessions keep an interpreter", RETRY_AFTER_S)
        if self.held_bytes + NEW_BYTES > self.memory_bytes:
            raise CapacityFull(f"sessions hold {self.held_bytes >> 20} MiB of {self.memory_bytes >> 20}", RETRY_AFTER_S)
        self._bytes_of[notebook] = NEW_BYTES

    def set_used_bytes(self, notebook: Notebook, used_bytes: int) -> None:
        """Record the bytes that an interpreter holds after a call."""
        self._bytes_of[notebook] = NEW_BYTES + used_bytes

    def release(self, notebook: Notebook) -> None:
        """Stop counting an interpreter that has ended."""
        self._bytes_of.pop(notebook, None)


class Notebook:
    """The interpreter of one session. Calls come one at a time; a cancelled one may still be ending when the next
    comes."""

    def __init__(self, notebooks: Notebooks) -> None:
        self._notebooks = notebooks
        self._slot: Slot | None = None
        self._lost = False
        """True if state is gone and no cell has said so yet."""
        self._call_lock = asyncio.Lock()
        self._calls: set[asyncio.Task[Execution]] = set()

    async def run(self, code: str, limits: Limits | None = None) -> Cell:
        """Run a cell. A cancelled call ends the interpreter.

        Args:
            code: Python source.
            limits: Limits of this call; None: the sandbox's.

        Raises:
            SandboxError: The sandbox failed, or the interpreter died between two calls.
            CapacityFull: No further interpreter may start.
        """
        abort = asyncio.get_running_loop().create_future()
        call = asyncio.create_task(self._run(code, limits or self._notebooks.sandbox.limits, abort), name="cell")
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        execution = await until_ended(call, abort)
        restarted = self._lost
        self._lost = False
        return Cell(execution, restarted, self._slot is not None)

    async def _run(self, code: str, limits: Limits, abort: asyncio.Future[None]) -> Execution:
        """Run a cell to its end, whatever happens to the caller."""
        async with self._call_lock:
            slot = await self._start() if self._slot is None else self._slot
            # the interpreter is up already, so it gets no time to start
            call = Call(slot, replace(limits, start_timeout_s=0.0))
            try:
                execution = await call.run(code.encode("utf-8", "surrogatepass"), abort)
                self._notebooks.set_used_bytes(self, slot.kept_bytes())
                return execution
            finally:
                if not slot.usable:
                    await self._end()
                    self._lost = True

    async def _start(self) -> Slot:
        self._notebooks.admit(self)
        try:
            self._slot = await self._notebooks.sandbox.open_session()
            return self._slot
        finally:
            if self._slot is None:
                self._notebooks.release(self)

    async def _end(self) -> None:
        slot = self._slot
        self._slot = None
        if slot is not None:
            await slot.end()
            self._notebooks.release(self)

    async def close(self) -> None:
        """End the interpreter and wait for its last call."""
        if self._slot is not None:
            self._slot.kill()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._end()
