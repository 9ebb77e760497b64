"""An engine of this process, with the interface of one in another process (ports.RemoteEngine).

A weight publisher can then push to an engine without a rollout actor: in tests, and wherever one process does it all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, TypeVarTuple

from ..errors import DeadlineMissed, EngineGone
from ..ports import RolloutEngine
from ..waiting.deadlines import Deadline, within

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class LocalEngine:
    """Implements ports.RemoteEngine. An engine that misses a deadline is discarded."""

    def __init__(self, engine: RolloutEngine, name: str = "rollout-0") -> None:
        self.engine = engine
        self.name = name
        self.version: int | None = None

    async def call(
        self, method: Callable[[Any, *Arguments], Awaitable[Result]], *args: *Arguments, deadline: Deadline
    ) -> Result:
        """See ports.RemoteEngine."""
        implementation: Callable[[*Arguments], Awaitable[Result]] = getattr(self.engine, method.__name__)
        try:
            return await within(deadline, implementation(*args), f"{method.__name__} of {self.name}")
        except DeadlineMissed as error:
            await self.discard(str(error))
            raise EngineGone(f"{self.name} is lost: {error}") from error

    async def discard(self, reason: str) -> None:
        await self.engine.discard(reason)
