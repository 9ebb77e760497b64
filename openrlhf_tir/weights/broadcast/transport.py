"""Broadcast transport: learner rank 0 -> the workers of all engines at once, in a group that is made when the engines
are others than last time.

    open_broadcast      where to meet: rank 0's node, a free port
    broadcast           ┐ at once, learner and engines; who dies or fails ends it for all,
    receive_weights     ┘ who hangs is not waited for: then again, in another group, without them
    use_received        the digest is the learner's: the new weights sample, their canary first

An engine that got everything goes on whatever befell the others. One whose push was torn has nobody's weights: it
stands still until it has all of a push, or is discarded. An engine that joins meets the learner alone; the next push
makes a group of all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from ...config import Config
from ...deadlines import Deadline
from ...errors import InfraError, WeightsUnverified
from ...ports import Broadcasts
from ...types import BroadcastRendezvous, BroadcastResult, Canary
from ..transport import PushTarget, Results, in_time, name_of, same_weights

log = logging.getLogger(__name__)
ATTEMPTS = 4
"""Each but the last is made again without a lost engine, or with all: a torn connection may be an accident."""


class Deadlines(NamedTuple):
    push: Deadline
    """An engine's part of a push."""
    answer: Deadline
    """An engine's answer after the learner is through, or has given up."""


def transport_of(cfg: Config, learner: Broadcasts) -> BroadcastTransport | None:
    """The one that vllm.sync_backend names; None for files, which the publisher has of its own."""
    if cfg.vllm.sync_backend == "file":
        return None
    return BroadcastTransport(
        learner,
        cfg.vllm.world_size,
        Deadlines(Deadline.of(cfg, "timeouts.push_s"), Deadline.of(cfg, "timeouts.broadcast_s")),
    )


class BroadcastTransport:
    delta = False

    def __init__(self, learner: Broadcasts, workers: int, deadlines: Deadlines) -> None:
        """`workers`: how many each engine has, which are ranks of the group one after the other."""
        self.learner, self.workers, self.deadlines = learner, workers, deadlines
        self.version = 0
        self.digest: str | None = None
        """The digest of `version`'s weights; None while nobody was sent them."""
        self.begun = False
        self.seconds, self.nbytes = 0.0, 0
        self._before: str | None = None
        """The digest that this push must not have."""
        self._meeting: BroadcastRendezvous | None = None
        self._members: list[PushTarget] = []
        self._names = (f"push{n}" for n in count(1))

    def begin(self) -> None:
        self.seconds, self.nbytes = 0.0, 0

    async def take(self, version: int, differs_from: str | None, *, full: bool = False) -> None:
        """The weights stay where they are until they are sent. A broadcast is always `full`."""
        self.version = version
        self.begun = True
        self.digest = None
        self._before = differs_from

    async def whole(self) -> None:
        """It always is."""

    def remove(self) -> None:
        """The group ends with its processes."""

    async def sent(self, engines: list[PushTarget], canary: Canary) -> Results:
        """Raises WeightsUnverified for weights that had to differ from the last push's; what the learner raises."""
        results: dict[int, list | BaseException] = {}
        for attempt in range(1, ATTEMPTS + 1):
            left = [i for i in range(len(engines)) if i not in results]
            if not left:
                break
            torn = await self._attempt({i: engines[i] for i in left}, canary, results)
            for i, why in torn.items():
                if attempt == ATTEMPTS:
                    results[i] = WeightsUnverified(
                        f"version {self.version} was torn {ATTEMPTS} times, the last time so: {why}"
                    )
            if torn and attempt < ATTEMPTS:
                log.warning(
                    "the broadcast of version %d is repeated for %d of %d engines: %s",
                    self.version,
                    len(torn),
                    len(engines),
                    next(iter(torn.values())),
                )
        return [results[i] for i in range(len(engines))]

    async def _attempt(
        self, engines: dict[int, PushTarget], canary: Canary, results: dict[int, list | BaseException]
    ) -> dict[int, str]:
        """Adds to `results` what is settled; returns who needs another attempt, and why."""
        sent, received = await self._broadcast(list(engines.values()))
        self.nbytes += sent.nbytes
        torn: dict[int, str] = {}
        whole: list[int] = []
        for (i, engine), found in zip(engines.items(), received, strict=True):
            if isinstance(found, BaseException):
                results[i] = found
            elif sent.digest is None or found.digest is None:
                torn[i] = found.fault or sent.fault or "the learner did not finish"
            elif found.digest != sent.digest:
                results[i] = WeightsUnverified(
                    f"{name_of(engine)} received weights of digest {found.digest[:12]}, the learner sent"
                    f" {sent.digest[:12]} as version {self.version}"
                )
            else:
                whole.append(i)
        if sent.digest is None or len(whole) < len(engines):
            self._members = []  # torn, or somebody in it is to be replaced
        if sent.digest is not None:
            if sent.digest == self._before:
                raise WeightsUnverified(same_weights(self.version, sent.digest))
            self.digest = sent.digest
            self._before = None
            what = f"The use of version {self.version} by"
            uses = [
                in_time(self.deadlines.push, e.use_received(self.version, sent.digest, canary), f"{what} {name_of(e)}")
                for e in (engines[i] for i in whole)
            ]
            results |= dict(zip(whole, await asyncio.gather(*uses, return_exceptions=True), strict=True))
        return torn

    async def _broadcast(
        self, engines: Sequence[PushTarget]
    ) -> tuple[BroadcastResult, list[BroadcastResult | BaseException]]:
        """One push to all. Who raises ends it; so does the learner's own fault. Then the others answer soon, or are
        taken for hung."""
        start = time.monotonic()
        if self._meeting is None or self._members != list(engines):
            self._meeting, self._members = await self.learner.open_broadcast(len(engines) * self.workers), list(engines)
        push = next(self._names)
        receiving = [
            asyncio.ensure_future(self._received(e, 1 + i * self.workers, push, self._meeting))
            for i, e in enumerate(engines)
        ]
        sending = asyncio.ensure_future(self.learner.broadcast(push))
        watching = [asyncio.ensure_future(self._ended_by(r, sending, push)) for r in receiving]
        try:
            sent = await sending
            self.seconds += time.monotonic() - start
            answers = [
                in_time(self.deadlines.answer, r, f"The answer of {name_of(e)} to a broadcast")
                for e, r in zip(engines, receiving, strict=True)
            ]
            return sent, await asyncio.gather(*answers, return_exceptions=True)
        finally:
            for task in (*watching, *receiving, sending):
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def _received(
        self, engine: PushTarget, first_rank: int, push: str, meeting: BroadcastRendezvous
    ) -> BroadcastResult:
        return await in_time(
            self.deadlines.push,
            engine.receive_weights(meeting, first_rank, push),
            f"The broadcast of version {self.version} to {name_of(engine)}",
        )

    async def _ended_by(
        self, receiving: asyncio.Future[BroadcastResult], sending: asyncio.Future[BroadcastResult], push: str
    ) -> None:
        """An engine that will not get it all keeps the learner waiting for it, unless the learner is told."""
        await asyncio.wait({receiving})
        fault = receiving.exception() or receiving.result().fault
        if fault and not sending.done():
            with suppress(InfraError):  # then the learner's own deadline ends it
                await self.learner.end_broadcast(push, str(fault))
