"""One warm interpreter in its own container, and the slots that fork from it: at most one for each place.

    full    numpy and sympy are imported: for calls that mention a library of LIBRARIES, and for sessions
    light   the standard library only: a trivial call costs less than half the CPU time, 3 ms where full takes 7

A dead container or slot is replaced before the next call on it. The end of one template does not touch the other's
slots.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from ..isolation.control_group import ControlGroups
from ..isolation.tree import descendants
from ..sandbox import SandboxError
from .call import Slot
from .container import Container, has_ended

log = logging.getLogger(__name__)

LIBRARIES = (b"numpy", b"sympy", b"mpmath", b"scipy", b"pandas", b"matplotlib")
"""Libraries that the full template has imported, and libraries that import numpy first of all."""


def needs_full(texts: Iterable[bytes]) -> bool:
    """Return True if the code or one of its files names a library. If the guess is wrong, the light template imports it
    from disk."""
    return any(library in text for text in texts for library in LIBRARIES)


class Template:
    """A warm interpreter and its slots."""

    def __init__(
        self,
        name: str,
        new_container: Callable[[], Container],
        places: int,
        groups: ControlGroups | None = None,
        memory_bytes: int = 0,
    ) -> None:
        """Create the template. The first slot starts its container.

        Args:
            name: "light" or "full", for messages.
            new_container: Returns a container that is not started.
            places: Number of slots.
            groups: Control groups; each slot gets one that bounds its memory.
            memory_bytes: The limit of these groups.
        """
        self.name = name
        self._new_container = new_container
        self._groups = groups
        self._memory_bytes = memory_bytes
        self.container: Container | None = None
        self._starting = asyncio.Lock()
        self.slots: list[Slot | None] = [None] * places

    async def slot(self, place: int) -> Slot:
        """Return the slot of a place, a new one if there is none that works. Raises SandboxError."""
        slot = self.slots[place]
        if slot is not None:
            if slot.usable and self.container and self.container.alive and not has_ended(slot.pidfd):
                return slot
            self.slots[place] = None
            await slot.end()
        slot = self.slots[place] = await self.open(place)
        return slot

    async def open(self, index: int | None) -> Slot:
        """Return a new slot, which the caller ends. `index` is None for a session. Raises SandboxError."""
        slot = Slot(*await (await self._running()).open_slot(index))
        if self._groups is not None:
            try:
                slot.group = self._groups.new(self._memory_bytes)
                slot.group.add([slot.pid, *descendants(slot.pid)])
            except OSError as e:
                await slot.end()
                raise SandboxError(f"no control group for a slot: {e}") from e
        return slot

    async def _running(self) -> Container:
        """Return the container, started. A dead one is replaced."""
        async with self._starting:
            if self.container is None or not self.container.alive:
                if self.container is not None:
                    log.error(
                        "the %s warm container ended; starting another. Its stderr ends with: %s",
                        self.name,
                        self.container.log_tail() or "nothing",
                    )
                    self.container.kill()
                self.container = self._new_container()
                await self.container.start()
        return self.container

    def kill_slots(self) -> None:
        """Kill all slots."""
        for slot in filter(None, self.slots):
            slot.kill()

    async def close(self) -> None:
        """End all slots and the container. No call may be running."""
        for place, slot in enumerate(self.slots):
            if slot is not None:
                await slot.end()
                self.slots[place] = None
        if self.container is not None:
            self.container.kill()
