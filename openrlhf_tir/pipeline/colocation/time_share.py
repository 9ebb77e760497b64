"""Share GPUs between learner ranks and engines: one of the two has the memory at a time.

Used with train.colocate_all, in pipeline.mode = 'sync'.

    turn      engines                          learner                                  taken by
    sampling  awake                            optimizer, gradients in host memory      a group, an evaluation, a
                                                                                        calibration
    learning  asleep: weights in host memory,  everything on the GPUs                   a step, loading a checkpoint,
              no KV cache                                                               ranks that start
    pushing   asleep until the push wakes it   as in sampling: its weights are there    a push, an engine that starts

Whoever needs another turn switches to it, and it stays until the next switch. Whoever works holds its turn meanwhile.
The learner waits for the last group, and for engines that are loading, as these measure how much memory is free. An
engine that starts during the learner's turn waits for its end. Nobody waits for a turn with a lock in hand that another
holder may need: an engine that starts joins under the publisher's lock.

A switch that fails or is cancelled leaves no turn; the next who needs one makes all calls again, so all of them are
idempotent. An engine that dies during a switch is left to its owner, who replaces it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import StrEnum
from typing import Any, Protocol

from ...errors import EngineGone
from ...ports import RemoteEngine, RolloutEngine
from ...waiting.deadlines import Deadline, within
from ..wakeup import Wakeup

log = logging.getLogger(__name__)


class Offloads(Protocol):
    """A learner. Both calls are idempotent and bounded in time. They raise InfraError if a rank died."""

    async def onload(self) -> None:
        """Bring optimizer and gradients back to the GPUs."""

    async def offload(self) -> None:
        """Move optimizer and gradients to host memory. The weights stay: a push and a score need them."""


class GpuTurn(StrEnum):
    """Who has the GPUs; see the module's docstring."""

    SAMPLING = "sampling"
    LEARNING = "learning"
    PUSHING = "pushing"


class GpuTimeShare:
    """Whose turn it is on the GPUs. One per session; belongs to one event loop. At first the engines are awake."""

    def __init__(self, engines: Sequence[RemoteEngine], deadline: Deadline, switch_deadline: Deadline) -> None:
        """Create the time share; the engines have the first turn.

        Args:
            engines: The live engines; read again at every switch.
            deadline: Deadline of the wait for a turn, which is as long as what others do in theirs.
            switch_deadline: Deadline of an engine's `sleep` or `wake`.
        """
        self.engines = engines
        self.deadline = deadline
        self.switch_deadline = switch_deadline
        self.learner: Offloads | None = None
        """None while its ranks have not started. They come up in the learner's turn, with everything on the GPUs."""
        self.turn: GpuTurn | None = GpuTurn.SAMPLING
        """None after a switch that was not completed."""
        self.holders: Counter[str] = Counter()
        """Number of those who hold each turn and, as "starting", of the engines that are loading."""
        self._changed = Wakeup()
        self._switching = asyncio.Lock()

    def sampling(self) -> AbstractAsyncContextManager[None]:
        """Hold the engines' turn, for a group.

        Raises:
            DeadlineMissed: The turn did not come within `deadline`.
            LearnerDied: A learner rank died as it left its turn.
            EngineError: An engine did not sleep or wake. One that is lost raises nothing: it is replaced.
        """
        conflicts = (GpuTurn.LEARNING, GpuTurn.PUSHING)
        return self._hold("sampling", "The engines' turn on the GPUs", GpuTurn.SAMPLING, conflicts)

    def learning(self) -> AbstractAsyncContextManager[None]:
        """Hold the learner's turn, for a step. Raises as `sampling` does."""
        conflicts = (GpuTurn.SAMPLING, GpuTurn.PUSHING, "starting")
        return self._hold("learning", "The learner's turn on the GPUs", GpuTurn.LEARNING, conflicts)

    def pushing(self) -> AbstractAsyncContextManager[None]:
        """Hold the turn of a weight push. Raises as `sampling` does."""
        return self._hold("pushing", "The push's turn on the GPUs", GpuTurn.PUSHING, (GpuTurn.LEARNING,))

    def starting(self) -> AbstractAsyncContextManager[None]:
        """Hold a turn for an engine while it loads, is proved and joins. Raises as `sampling` does."""
        return self._hold(
            "starting", "The turn on the GPUs of an engine that starts", GpuTurn.PUSHING, (GpuTurn.LEARNING,)
        )

    @asynccontextmanager
    async def _hold(self, holder: str, message: str, turn: GpuTurn, conflicts: tuple[str, ...]) -> AsyncIterator[None]:
        """Wait for a turn, and hold it inside the block.

        Args:
            holder: The kind of holder, a key of `holders`.
            message: Begins the error of a wait that was too long.
            turn: The turn.
            conflicts: Kinds of holders that must have finished first.

        Raises:
            DeadlineMissed: They did not finish in time. Errors of a switch are raised as they are.
        """
        taking = asyncio.ensure_future(self._take(holder, turn, conflicts))
        try:
            await within(self.deadline, taking, message)
            yield
        finally:
            # Also if this call was cancelled at the very moment at which it got the turn.
            if taking.done() and not taking.cancelled() and taking.exception() is None:
                self.holders[holder] -= 1
                self._changed.notify()

    async def _take(self, holder: str, turn: GpuTurn, conflicts: tuple[str, ...]) -> None:
        def is_free() -> bool:
            return not any(self.holders[other] for other in conflicts)

        while True:
            await self._changed.until(is_free)
            async with self._switching:
                # Another holder may have come while this call waited for the lock.
                if is_free():
                    await self._switch(turn)
                    self.holders[holder] += 1
                    return

    async def _switch(self, turn: GpuTurn) -> None:
        previous = self.turn
        # Engines that are awake take a push as well.
        if previous is turn or (turn is GpuTurn.PUSHING and previous is GpuTurn.SAMPLING):
            return
        self.turn = None
        if turn is GpuTurn.LEARNING:
            await self._call_engines(RolloutEngine.sleep)
            if self.learner is not None:
                await self.learner.onload()
        else:
            if self.learner is not None and previous is not GpuTurn.PUSHING:
                await self.learner.offload()
            if turn is GpuTurn.SAMPLING:
                await self._call_engines(RolloutEngine.wake)
        self.turn = turn
        log.debug("GPUs: %s after %s", turn, previous)

    async def _call_engines(self, method: Callable[[Any], Awaitable[None]]) -> None:
        """Call `sleep` or `wake` of every engine at once. A lost engine is no error: its replacement starts awake."""
        engines = list(self.engines)
        calls = [engine.call(method, deadline=self.switch_deadline) for engine in engines]
        results = await asyncio.gather(*calls, return_exceptions=True)
        for engine, result in zip(engines, results, strict=True):
            if isinstance(result, EngineGone):
                log.warning("%s was lost in its %s: %s", engine.name, method.__name__, result)
            elif isinstance(result, BaseException):
                raise result
