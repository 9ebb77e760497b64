"""Turns: learner ranks and engines share their GPUs, and one of the two has the memory at a time (train.colocate_all,
pipeline.mode = 'sync').

    turn      engines                            learner                                 taken by
    sampling  awake                              optimiser, gradients in host memory     a group, an evaluation, a
                                                                                         calibration
    learning  asleep: weights in host memory,    whole, on the GPUs                      a step, the loading of a
              no KV cache                                                                checkpoint, ranks that start
    pushing   asleep until the push wakes each   as in sampling: its weights are there   a push; an engine that starts

A turn is switched by whoever needs another one, and stays until then. Who samples, learns, pushes or starts holds its
turn meanwhile: the learner waits for the last group and for engines that load, which fill the memory of which it would
take its part; an engine that starts in the learner's turn waits for its end. Nobody waits for a turn with a lock in
hand that another holder may need: an engine that starts joins under the publisher's.

A switch that fails or is given up leaves no turn: whatever was called is called again by the next who needs one. So all
calls are idempotent. An engine that dies in one is left to its owner, who starts another.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import StrEnum
from typing import Any, Protocol

from ...deadlines import Deadline, within
from ...errors import EngineGone
from ...ports import RemoteEngine, RolloutEngine
from ..signal import Signal

log = logging.getLogger(__name__)


class Offloads(Protocol):
    """A learner. Both calls are idempotent, bounded in time, and raise InfraError when a rank died."""

    async def onload(self) -> None: ...
    async def offload(self) -> None:
        """Optimiser and gradients to host memory. The weights stay: a push and a score need them."""


class Turn(StrEnum):
    SAMPLING = "sampling"
    LEARNING = "learning"
    PUSHING = "pushing"


class Turns:
    """One per session. `engines` is looked at anew at every switch; at first awake. Belongs to one event loop."""

    def __init__(self, engines: Sequence[RemoteEngine], deadline: Deadline, switch_deadline: Deadline) -> None:
        """Create the turns; the engines have the first one.

        Args:
            engines: The live engines; read again at every switch.
            deadline: Deadline of the wait for a turn, which is as long as what others do in theirs.
            switch_deadline: Deadline of an engine's `sleep` or `wake`.
        """
        self.engines = engines
        self.deadline = deadline
        self.switch_deadline = switch_deadline
        self.learner: Offloads | None = None
        """None while its ranks are still to start; they come up with all they have, in the learner's turn."""
        self.turn: Turn | None = Turn.SAMPLING
        """None: a switch was not completed."""
        self.held: Counter[str] = Counter()
        """How many hold each turn; and, as "starting", how many engines load."""
        self._signal = Signal()
        self._switching = asyncio.Lock()

    def sampling(self) -> AbstractAsyncContextManager[None]:
        return self._hold("sampling", "The engines' turn on the GPUs", Turn.SAMPLING, (Turn.LEARNING, Turn.PUSHING))

    def learning(self) -> AbstractAsyncContextManager[None]:
        return self._hold(
            "learning", "The learner's turn on the GPUs", Turn.LEARNING, (Turn.SAMPLING, Turn.PUSHING, "starting")
        )

    def pushing(self) -> AbstractAsyncContextManager[None]:
        return self._hold("pushing", "The push's turn on the GPUs", Turn.PUSHING, (Turn.LEARNING,))

    def starting(self) -> AbstractAsyncContextManager[None]:
        """Held while an engine loads, is proved and joins."""
        return self._hold("starting", "An engine that starts, and its turn on the GPUs", Turn.PUSHING, (Turn.LEARNING,))

    @asynccontextmanager
    async def _hold(self, who: str, what: str, turn: Turn, unless: tuple[str, ...]) -> AsyncIterator[None]:
        """Raises DeadlineMissed when others do not end theirs, and what a switch raised."""
        taking = asyncio.ensure_future(self._taken(who, turn, unless))
        try:
            await within(self.deadline, taking, what)
            yield
        finally:
            # also where we are cancelled at the moment at which it was ours
            if taking.done() and not taking.cancelled() and taking.exception() is None:
                self.held[who] -= 1
                self._signal.notify()

    async def _taken(self, who: str, turn: Turn, unless: tuple[str, ...]) -> None:
        def free() -> bool:
            return not any(self.held[other] for other in unless)

        while True:
            await self._signal.until(free)
            async with self._switching:
                if free():
                    await self._switch(turn)
                    self.held[who] += 1
                    return

    async def _switch(self, turn: Turn) -> None:
        before = self.turn
        if before is turn or (turn is Turn.PUSHING and before is Turn.SAMPLING):  # awake engines take a push as well
            return
        self.turn = None
        if turn is Turn.LEARNING:
            await self._call_engines(RolloutEngine.sleep)
            if self.learner is not None:
                await self.learner.onload()
        else:
            if self.learner is not None and before is not Turn.PUSHING:
                await self.learner.offload()
            if turn is Turn.SAMPLING:
                await self._call_engines(RolloutEngine.wake)
        self.turn = turn
        log.debug("GPUs: %s after %s", turn, before)

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
