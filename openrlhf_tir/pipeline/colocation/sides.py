"""Sides: the loop's rollout and publisher, which take a turn on the shared GPUs before they work. The loop itself knows
nothing of it.

prompts -> run_group (sampling) ... the last group ends -> changing (learning): step -> publish (pushing): verified ->
run_group (sampling) ..."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any

from ...errors import LearnerDied
from ...ports import Publisher, Rollout
from ...types import Group, GroupKey, GroupMeta, PublishReport, Task
from .turns import Turns


class TurnsRollout:
    """Groups are sampled in the engines' turn, which lasts until all have ended."""

    def __init__(self, inner: Rollout, turns: Turns) -> None:
        self.inner, self.turns = inner, turns

    async def run_group(self, key: GroupKey, task: Task, *mode: Any) -> tuple[GroupMeta, Any]:
        """`mode`: an evaluation's. A rank that dies as it leaves its turn is no fault of the group: an ExceptionGroup,
        which the loop does not take for one."""
        async with AsyncExitStack() as held:
            try:
                await held.enter_async_context(self.turns.sampling())
            except LearnerDied as lost:
                raise ExceptionGroup("the learner's ranks, as they left their turn", [lost]) from None
            return await self.inner.run_group(key, task, *mode)

    async def fetch(self, payloads: Sequence[Any]) -> list[Group]:
        return await self.inner.fetch(payloads)

    async def store(self, group: Group) -> Any:
        return await self.inner.store(group)

    def where(self, key: GroupKey) -> str:
        return self.inner.where(key)

    def engine_stats(self) -> dict[str, float]:
        return self.inner.engine_stats()


class TurnsPublisher:
    def __init__(
        self, inner: Publisher, turns: Turns, phase: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """`phase`: what the loop is seen in while the learner comes to its turn; while it leaves it, the push is on."""
        self.inner, self.turns, self.phase = inner, turns, phase

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """The learner's turn first, then the publisher's lock: an engine that is starting joins under that lock, and
        the turn waits for it."""
        async with AsyncExitStack() as held:
            with self.phase():
                await held.enter_async_context(self.turns.learning())
            await held.enter_async_context(self.inner.changing())
            yield

    async def publish(self, version: int, *, must_differ: bool = False) -> PublishReport:
        """Each engine wakes as it takes the push, its KV cache for the canary."""
        async with self.turns.pushing():
            return await self.inner.publish(version, must_differ=must_differ)
