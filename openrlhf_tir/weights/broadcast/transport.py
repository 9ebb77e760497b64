"""Push weights from learner rank 0 to the workers of all engines at once, in a group that is opened for these engines.

    open_broadcast      opens the group on rank 0's node, at a free port; only if the engines have changed
    broadcast           ┐ run at the same time on learner and engines. A member that dies, fails or hangs ends the push
    receive_weights     ┘ for all; it is then repeated in another group without that member
    apply_received      if the digest is the learner's: compute with the new weights, the canary first

An engine that received everything goes on, whatever happened to the others. An engine whose push was torn has mixed
weights: it is frozen until it has received a complete push, or is discarded. An engine that joins gets its first push
in a group with the learner alone; the next push opens a group of all engines.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from ...errors import InfraError, WeightsUnverified
from ...ports import Broadcasts, RemoteEngine, RolloutEngine
from ...pushes import BroadcastRendezvous, BroadcastResult, Canary
from ...waiting.deadlines import Deadline, within
from ..transport import Result, Results, Transport

log = logging.getLogger(__name__)
ATTEMPTS = 4
"""How often a push is tried. It is repeated without a lost engine, or with all if only a connection broke."""


class Deadlines(NamedTuple):
    """The deadlines of a broadcast."""

    push: Deadline
    """An engine's part of a push."""
    answer: Deadline
    """An engine's answer after the learner has finished or given up."""


class BroadcastTransport(Transport):
    """Pushes by broadcasts."""

    def __init__(self, learner: Broadcasts, workers: int, deadlines: Deadlines) -> None:
        """Create a transport; nothing is opened yet.

        Args:
            learner: Sends the broadcasts.
            workers: Number of workers of each engine. They are consecutive ranks of the group.
            deadlines: The deadlines.
        """
        super().__init__()
        self.learner = learner
        self.workers = workers
        self.deadlines = deadlines
        self._meeting: BroadcastRendezvous | None = None
        self._members: list[RemoteEngine] = []
        self._names = (f"push{n}" for n in count(1))

    async def send(self, engines: list[RemoteEngine], canary: Canary) -> Results:
        """Bring the push into each engine; repeat it for those whose push was torn.

        Raises:
            WeightsUnverified: The weights had to differ from the last push's, but do not. Errors of the learner are
                raised as they are.
        """
        results: dict[RemoteEngine, Result] = {}
        for attempt in range(1, ATTEMPTS + 1):
            remaining = [engine for engine in engines if engine not in results]
            if not remaining:
                break
            torn = await self._attempt(remaining, canary, results)
            for engine, reason in torn.items():
                if attempt == ATTEMPTS:
                    results[engine] = WeightsUnverified(
                        f"the broadcast of version {self.version} failed {ATTEMPTS} times, at last because: {reason}"
                    )
            if torn and attempt < ATTEMPTS:
                log.warning(
                    "the broadcast of version %d is repeated for %d of %d engines: %s",
                    self.version,
                    len(torn),
                    len(engines),
                    next(iter(torn.values())),
                )
        return [results[engine] for engine in engines]

    async def _attempt(
        self, engines: list[RemoteEngine], canary: Canary, results: dict[RemoteEngine, Result]
    ) -> dict[RemoteEngine, str]:
        """Broadcast once to some engines.

        Args:
            engines: The engines.
            canary: What they sample first.
            results: Receives the final results of this attempt.

        Returns:
            The reason for each engine that needs another attempt.
        """
        sent, received = await self._broadcast(engines)
        self.nbytes += sent.nbytes
        torn: dict[RemoteEngine, str] = {}
        complete: list[RemoteEngine] = []
        for engine, result in zip(engines, received, strict=True):
            if isinstance(result, BaseException):
                results[engine] = result
            elif sent.digest is None or result.digest is None:
                torn[engine] = result.fault or sent.fault or "the learner did not finish"
            elif result.digest != sent.digest:
                results[engine] = WeightsUnverified(
                    f"{engine.name} received weights of digest {result.digest[:12]}, but the learner sent"
                    f" {sent.digest[:12]} as version {self.version}"
                )
            else:
                complete.append(engine)
        if sent.digest is None or len(complete) < len(engines):
            self._members = []  # the group was torn, or a member will be replaced: the next push opens another
        if sent.digest is not None:
            self._note_digest(sent.digest)
            uses = [
                engine.call(
                    RolloutEngine.apply_received, self.version, sent.digest, canary, deadline=self.deadlines.push
                )
                for engine in complete
            ]
            results |= zip(complete, await asyncio.gather(*uses, return_exceptions=True), strict=True)
        return torn

    async def _broadcast(
        self, engines: Sequence[RemoteEngine]
    ) -> tuple[BroadcastResult, list[BroadcastResult | BaseException]]:
        """Run learner and engines at once. An error of any of them ends the push for all.

        After that the other engines answer soon, or miss the deadline of an answer and count as hung.

        Returns:
            The learner's result, and the result or error of each engine.
        """
        start = time.monotonic()
        if self._meeting is None or self._members != list(engines):
            self._meeting = await self.learner.open_broadcast(len(engines) * self.workers)
            self._members = list(engines)
        push = next(self._names)
        receiving = [
            asyncio.ensure_future(
                engine.call(
                    RolloutEngine.receive_weights,
                    self._meeting,
                    1 + i * self.workers,
                    push,
                    deadline=self.deadlines.push,
                )
            )
            for i, engine in enumerate(engines)
        ]
        sending = asyncio.ensure_future(self.learner.broadcast(push))
        watching = [asyncio.ensure_future(self._end_if_faulty(task, sending, push)) for task in receiving]
        try:
            sent = await sending
            self.seconds += time.monotonic() - start
            answers = [
                within(self.deadlines.answer, task, f"The answer of {engine.name} to a broadcast")
                for engine, task in zip(engines, receiving, strict=True)
            ]
            return sent, await asyncio.gather(*answers, return_exceptions=True)
        finally:
            for task in (*watching, *receiving, sending):
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def _end_if_faulty(
        self, receiving: asyncio.Future[BroadcastResult], sending: asyncio.Future[BroadcastResult], push: str
    ) -> None:
        """End the push at the learner if an engine fails, for which the learner would wait until its deadline."""
        await asyncio.wait({receiving})
        fault = receiving.exception() or receiving.result().fault
        if fault and not sending.done():
            with suppress(InfraError):  # in that case the learner's own deadline ends it
                await self.learner.end_broadcast(push, str(fault))
