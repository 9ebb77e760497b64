"""The loop's rollout and publisher, which take their turn on shared GPUs before they work. The loop does not know it.

prompts -> run_group (sampling) ... the last group ends -> exclusive_learner (learning): step
        -> publish (pushing): verified -> run_group (sampling) ...
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any

from ...errors import LearnerDied
from ...ports import Publisher, Rollout
from ...pushes import PublishReport
from ...types import Group, GroupKey, GroupMeta, Task
from .time_share import GpuTimeShare


class TimeSharedRollout:
    """A rollout whose groups are sampled in the engines' turn, which lasts until all of them have ended."""

    def __init__(self, inner: Rollout, time_share: GpuTimeShare) -> None:
        self.inner = inner
        self.time_share = time_share

    async def run_group(self, key: GroupKey, task: Task, *mode: Any) -> tuple[GroupMeta, Any]:
        """Run a group in the engines' turn.

        Raises:
            ExceptionGroup: A learner rank died as it left its turn (LearnerDied), which the loop does not take for a
                fault of the group.
            InfraError: As Rollout.run_group; or the turn did not come (DeadlineMissed).
        """
        async with AsyncExitStack() as held:
            try:
                await held.enter_async_context(self.time_share.sampling())
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


class TimeSharedPublisher:
    """A publisher that takes the learner's turn for a step, and the push's turn for a push."""

    def __init__(
        self,
        inner: Publisher,
        time_share: GpuTimeShare,
        phase: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Create a publisher.

        Args:
            inner: The publisher that does the work.
            time_share: The turns on the GPUs.
            phase: The phase that the loop reports while it waits for the learner's turn.
        """
        self.inner = inner
        self.time_share = time_share
        self.phase = phase

    @asynccontextmanager
    async def exclusive_learner(self) -> AsyncIterator[None]:
        """Take the learner's turn first, then the publisher's lock.

        An engine that is starting joins under that lock, and the learner's turn waits for it.
        """
        async with AsyncExitStack() as held:
            with self.phase():
                await held.enter_async_context(self.time_share.learning())
            await held.enter_async_context(self.inner.exclusive_learner())
            yield

    async def publish(self, version: int, *, must_differ: bool = False) -> PublishReport:
        """Push in a turn of its own. Each engine wakes when it takes the push, its KV cache for the canary.

        Raises:
            InfraError, Diverged: As Publisher.publish; or the turn did not come (DeadlineMissed).
        """
        async with self.time_share.pushing():
            return await self.inner.publish(version, must_differ=must_differ)
