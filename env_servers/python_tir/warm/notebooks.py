"""Notebooks: interpreters that keep their state from call to call, one per session, within a cap and a memory budget.

    Notebook.run(code) -> Cell(execution, restarted); the interpreter starts with the first call; between two calls
                          nothing runs
    Notebook.close()   -> every process of it is dead, its files are gone

Covered as by `WarmSandbox`: a session has its own namespaces, /tmp, process count and limits, and sees nothing of
another one. A call that exceeds a limit or is cancelled, and code that ends or breaks its interpreter, lose the
session's state: the next call finds a new interpreter, and `restarted` says so once. An interpreter that dies between
two calls is a SandboxError, never the model's fault: it is stopped then (`freeze`), and nothing that it has set up can
end it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

from env_servers.admission import CapacityFull

from ..limits import Limits
from ..sandbox import Execution
from .call import Call, Slot, until_ended
from .sandbox import WarmSandbox

NEW_BYTES = 16 << 20
"""What an interpreter is counted as before its first call has ended: itself, its slot, and pages that it will copy."""
RETRY_AFTER_S = 1


class Cell(NamedTuple):
    execution: Execution
    restarted: bool
    """State of earlier calls is gone that nobody was told of yet: by this call, or before it."""
    alive: bool
    """The next call will find the state that this one left."""


class Notebooks:
    def __init__(self, sandbox: WarmSandbox, *, cap: int, memory_bytes: int) -> None:
        """At most `cap` interpreters at once, and no new one while those there hold `memory_bytes` together (measured
        after each call)."""
        self.sandbox = sandbox
        self.cap = cap
        self.memory_bytes = memory_bytes
        self._held: dict[Notebook, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    @property
    def held_bytes(self) -> int:
        return sum(self._held.values())

    def admit(self, notebook: Notebook) -> None:
        """Raises CapacityFull: others must end first."""
        if len(self._held) >= self.cap:
            raise CapacityFull(f"{len(self._held)} sessions keep an interpreter", RETRY_AFTER_S)
        if self.held_bytes + NEW_BYTES > self.memory_bytes:
            raise CapacityFull(f"sessions hold {self.held_bytes >> 20} MiB of {self.memory_bytes >> 20}", RETRY_AFTER_S)
        self._held[notebook] = NEW_BYTES

    def measured(self, notebook: Notebook, used: int) -> None:
        self._held[notebook] = NEW_BYTES + used

    def ended(self, notebook: Notebook) -> None:
        self._held.pop(notebook, None)


class Interpreters(Protocol):
    @property
    def limits(self) -> Limits: ...
    @property
    def open_session(self) -> Callable[[], Awaitable[Slot]]: ...


class Places(Protocol):
    """What a notebook needs: interpreters, and leave to hold one. `Notebooks`, or a request's own view of it."""

    @property
    def sandbox(self) -> Interpreters: ...
    def admit(self, notebook: Notebook, /) -> None: ...
    def measured(self, notebook: Notebook, used: int, /) -> None: ...
    def ended(self, notebook: Notebook, /) -> None: ...


class Notebook:
    """One session's interpreter. Calls come one at a time; a cancelled one may still be ending when the next comes."""

    def __init__(self, notebooks: Places) -> None:
        self._notebooks = notebooks
        self._slot: Slot | None = None
        self._lost = False
        """State is gone that nobody was told of."""
        self._serial = asyncio.Lock()
        self._turns: set[asyncio.Task[Execution]] = set()

    async def run(self, code: str) -> Cell:
        """Raises SandboxError, CapacityFull. Cancellation ends the interpreter."""
        given_up = asyncio.get_running_loop().create_future()
        turn = asyncio.create_task(self._turn(code, given_up), name="cell")
        self._turns.add(turn)
        turn.add_done_callback(self._ended)
        execution = await until_ended(turn, given_up)
        restarted = self._lost
        self._lost = False
        return Cell(execution, restarted, self._slot is not None)

    async def _turn(self, code: str, given_up: asyncio.Future[None]) -> Execution:
        async with self._serial:
            slot = await self._start() if self._slot is None else self._slot
            call = Call(slot, replace(self._notebooks.sandbox.limits, start_timeout_s=0.0))  # it is up
            try:
                execution = await call.run(code.encode("utf-8", "surrogatepass"), given_up)
                self._notebooks.measured(self, slot.kept_bytes())
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
                self._notebooks.ended(self)

    async def _end(self) -> None:
        slot = self._slot
        self._slot = None
        if slot is not None:
            await slot.end()
            self._notebooks.ended(self)

    def _ended(self, turn: asyncio.Task[Execution]) -> None:
        self._turns.discard(turn)
        if not turn.cancelled():
            turn.exception()  # seen, also when its caller went away

    async def close(self) -> None:
        if self._slot is not None:
            self._slot.kill()
        await asyncio.gather(*self._turns, return_exceptions=True)
        await self._end()
