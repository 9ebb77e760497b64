"""Batcher: the actor's message queue in front of the engine, with dynamic batching.

    generate -> gathering[env] -> flush -> fair queue -> place at the engine -> engine.generate
                (max_batch wait, or the     (groups       (max_running of
                first waited max_wait_ms)    in turn)      them)

Gathering is per environment, so that a slow environment's stragglers do not hold a fast one's batch. A flush never
waits for its slowest item: every request has its own future. With `max_wait_ms = 0` requests pass straight on (see
`rollout.max_wait_ms` for when waiting pays). What is beyond `max_running` stays here, where groups take turns, instead
of in the engine's first-come queue.

Memory is bounded: a group is admitted as a whole or refused (`admit`, QueueFull), and the requests of admitted groups,
one per live trajectory, come through its `lane`. A single request from outside (`generate`) is refused when `max_queue`
wait. A request that is aborted before the engine has it leaves at once, with nothing sampled.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import QueueFull
from ..logs.histogram import histogram, mean
from ..ports import Engine
from ..types import Completion, Sampling
from .fair_queue import FairQueue
from .handover import Abortable

WAIT_BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
    300.0,
)  # fmt: skip
SIZE_BOUNDS = tuple(float(1 << i) for i in range(13))
RECENT = 0.02
"""Weight of the newest wait in the moving mean that Retry-After is made of."""


@dataclass(slots=True, eq=False)
class _Ticket:
    env: str
    group: Hashable
    since: float
    granted: asyncio.Future[bool]
    """True: a place at the engine; False: it was aborted."""
    request_id: str
    gathering: bool = False
    aborted: bool = False
    """After its place was granted, and before it was taken."""


@dataclass(slots=True, eq=False)
class _Gathering:
    tickets: OrderedDict[_Ticket, None]
    timer: asyncio.TimerHandle


class Batcher:
    """An Engine in front of an Engine. Belongs to one event loop."""

    def __init__(
        self,
        engine: Engine,
        *,
        max_wait_ms: float = 0.0,
        max_batch: int = 256,
        max_running: int = 1 << 20,
        max_queue: int = 4096,
    ) -> None:
        self.engine, self.max_wait_s, self.max_batch = engine, max_wait_ms / 1000, max_batch
        self.max_running, self.max_queue = max_running, max_queue
        self.running = 0
        self.batch_sizes = histogram(
            "tir_queue_batch_size", "requests per flush; empty with rollout.max_wait_ms = 0", SIZE_BOUNDS
        )
        """Requests per flush. Empty with max_wait_ms = 0: nothing is gathered."""
        self.waits_s = histogram("tir_queue_wait_seconds", "from a request to its place at the engine", WAIT_BOUNDS_S)
        """Seconds that requests have waited for their place at the engine."""
        self._recent_wait_s = 0.0
        self._waiting: OrderedDict[_Ticket, None] = OrderedDict()
        self._granted: dict[_Ticket, None] = {}
        """Those with a place whose task has not run since, so that the engine does not know them yet."""
        self._gathering: dict[str, _Gathering] = {}
        self._ready: FairQueue[_Ticket] = FairQueue()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def age_s(self) -> float:
        """How long the oldest waiting request has waited; 0 when none does."""
        return asyncio.get_running_loop().time() - next(iter(self._waiting)).since if self._waiting else 0.0

    def stats(self) -> dict[str, float]:
        return {
            "queue_waiting": self.waiting,
            "queue_age_s": self.age_s,
            "queue_running": self.running,
            "batch_size_mean": mean(self.batch_sizes),
        }

    def admit(self, n: int = 1) -> None:
        """Raises QueueFull when n more requests would not find room."""
        if self.waiting + n > self.max_queue:
            raise QueueFull(
                f"{self.waiting} requests wait for the engine; {n} more would exceed rollout.max_queue ="
                f" {self.max_queue}. Try later, or use more engines.",
                retry_after_s=min(60, max(1, math.ceil(self._recent_wait_s))),
            )

    def lane(self, env: str, group: Hashable) -> Lane:
        """The engine as one admitted group of one environment sees it."""
        return Lane(self, env, group)

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        """A request from outside, a group by itself. Raises QueueFull."""
        self.admit()
        return await self.pass_on(token_ids, sampling, request_id, "", request_id)

    async def pass_on(
        self, token_ids: Sequence[int], sampling: Sampling, request_id: str, env: str, group: Hashable
    ) -> Completion:
        """Wait for a place at the engine, then be answered by it. Cancelling gives place and request up."""
        if not await self._place(env, group, request_id):
            return Completion(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int32), "", "abort")
        try:
            return await self.engine.generate(token_ids, sampling, request_id=request_id)
        finally:
            self.running -= 1
            self._grant()

    async def abort(self, request_id: str) -> None:
        """See Abortable, which the engine has to be."""
        if ticket := next((t for t in self._waiting if t.request_id == request_id), None):
            self._forget(ticket)
            ticket.granted.set_result(False)
            return
        if ticket := next((t for t in self._granted if t.request_id == request_id), None):
            ticket.aborted = True
            return
        assert isinstance(self.engine, Abortable), "peer_engine.handover_of refuses others"
        await self.engine.abort(request_id)

    def progress(self) -> dict[str, int]:
        """See Abortable. Those that wait are not in it."""
        assert isinstance(self.engine, Abortable), "peer_engine.handover_of refuses others"
        return self.engine.progress()

    async def _place(self, env: str, group: Hashable, request_id: str) -> bool:
        """False: aborted before there was one."""
        loop = asyncio.get_running_loop()
        if self.max_wait_s <= 0 and not self._ready and self.running < self.max_running:
            self.running += 1
            self._waited(0.0)
            return True
        ticket = _Ticket(env, group, loop.time(), loop.create_future(), request_id)
        self._waiting[ticket] = None
        if self.max_wait_s > 0:
            self._gather(ticket, loop)
        else:
            self._ready.push(group, ticket)
            self._grant()
        try:
            granted = await ticket.granted
        except asyncio.CancelledError:
            if ticket.granted.cancelled():
                if ticket in self._waiting:
                    self._forget(ticket)
            elif ticket.granted.result():  # granted first, and cancelled before it could run
                self._return(ticket)
            raise
        if ticket.aborted:
            self._return(ticket)
            return False
        self._granted.pop(ticket, None)
        return granted

    def _return(self, ticket: _Ticket) -> None:
        """A place that was granted and is not taken."""
        del self._granted[ticket]
        self.running -= 1
        self._grant()

    def _gather(self, ticket: _Ticket, loop: asyncio.AbstractEventLoop) -> None:
        ticket.gathering = True
        batch = self._gathering.get(ticket.env)
        if batch is None:
            batch = self._gathering[ticket.env] = _Gathering(
                OrderedDict(), loop.call_later(self.max_wait_s, self._flush, ticket.env)
            )
        batch.tickets[ticket] = None
        if len(batch.tickets) >= self.max_batch:
            self._flush(ticket.env)

    def _flush(self, env: str) -> None:
        batch = self._gathering.pop(env)
        batch.timer.cancel()
        self.batch_sizes.observe(len(batch.tickets))
        for ticket in batch.tickets:
            ticket.gathering = False
            self._ready.push(ticket.group, ticket)
        self._grant()

    def _grant(self) -> None:
        """Give free places at the engine to those whose turn it is."""
        now = asyncio.get_running_loop().time() if self._ready else 0.0
        while self._ready and self.running < self.max_running:
            ticket = self._ready.pop()
            del self._waiting[ticket]
            if ticket.granted.cancelled():
                continue
            self.running += 1
            self._waited(now - ticket.since)
            self._granted[ticket] = None
            ticket.granted.set_result(True)

    def _forget(self, ticket: _Ticket) -> None:
        del self._waiting[ticket]
        if not ticket.gathering:
            self._ready.remove(ticket.group, ticket)
            return
        batch = self._gathering[ticket.env]
        del batch.tickets[ticket]
        if not batch.tickets:
            batch.timer.cancel()
            del self._gathering[ticket.env]

    def _waited(self, seconds: float) -> None:
        self.waits_s.observe(seconds)
        self._recent_wait_s += RECENT * (seconds - self._recent_wait_s)


@dataclass(frozen=True, slots=True)
class Lane:
    """An Engine: the batcher, for the requests of one group."""

    batcher: Batcher
    env: str
    group: Hashable

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        """Never refused: the group was admitted."""
        return await self.batcher.pass_on(token_ids, sampling, request_id, self.env, self.group)
