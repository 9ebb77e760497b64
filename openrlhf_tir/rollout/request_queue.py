"""The queue in front of an actor's engine: groups take turns, and requests may be gathered to batches.

    generate -> gathering[environment] -> flush -> fair queue -> slot at the engine -> engine.generate
                (until there are max_batch         (groups      (max_running of
                 or max_wait_ms have passed)        in turn)     them)

Requests are gathered per environment, so that the late responses of a slow environment do not hold up the batch of a
fast one. A flush does not wait for its slowest item: every request has a future of its own. With `max_wait_ms = 0`
requests pass straight on (`rollout.max_wait_ms` says when waiting pays). More requests than `max_running` wait here,
where groups take turns, and not in the engine's queue, which is first come, first served.

Memory is bounded. A run has as many groups as its scheduler allows; their requests, one per live trajectory, come
through a `GroupQueue` and are never refused. A group that comes over HTTP is refused as a whole if its requests find no
room (`check_room`, QueueFull), as a single request from outside (`generate`) is if `max_queue` requests wait. A request
that is aborted before the engine has it is answered at once, without tokens.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import QueueFull
from ..ports import Engine
from ..telemetry.histogram import histogram, mean
from ..types import Completion, Sampling
from .fair_queue import FairQueue
from .sequence_migration import Abortable

WAIT_BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
    300.0,
)  # fmt: skip
SIZE_BOUNDS = tuple(float(1 << i) for i in range(13))
WAIT_GAIN = 0.02
"""Weight of the newest wait in the moving average from which Retry-After is computed."""


@dataclass(slots=True, eq=False)
class _Ticket:
    """A request that waits for a slot at the engine.

    Attributes:
        env: Its environment.
        group: Its group.
        since: Event loop time at which it began to wait.
        has_slot: Set when its wait is over: True if it has a slot, False if it was aborted.
        request_id: Its id.
        aborted: True if it was aborted after it had got a slot and before it used it.
    """

    env: str
    group: Hashable
    since: float
    has_slot: asyncio.Future[bool]
    request_id: str
    aborted: bool = False


@dataclass(slots=True, eq=False)
class _Gathering:
    """The batch of one environment that is being gathered. The timer flushes it."""

    tickets: dict[_Ticket, None]
    timer: asyncio.TimerHandle


class RequestQueue:
    """An Engine that queues requests for another Engine. Belongs to one event loop."""

    def __init__(
        self,
        engine: Engine,
        *,
        max_wait_ms: float = 0.0,
        max_batch: int = 256,
        max_running: int = 1 << 20,
        max_queue: int = 4096,
    ) -> None:
        """Create a queue.

        Args:
            engine: The engine that answers.
            max_wait_ms: Longest time that a request waits for its batch to be complete; 0: nothing is gathered.
            max_batch: Requests of a batch.
            max_running: Requests that the engine has at once.
            max_queue: Requests that may wait here.
        """
        self.engine = engine
        self.max_wait_s = max_wait_ms / 1000
        self.max_batch = max_batch
        self.max_running = max_running
        self.max_queue = max_queue
        self.running = 0
        """Requests that have a slot at the engine."""
        self.batch_sizes = histogram(
            "tir_queue_batch_size", "requests per flush; empty with rollout.max_wait_ms = 0", SIZE_BOUNDS
        )
        """Requests per flush. Empty with max_wait_ms = 0, as nothing is gathered."""
        self.waits_s = histogram("tir_queue_wait_seconds", "from a request to its place at the engine", WAIT_BOUNDS_S)
        """Seconds that requests have waited for their slot at the engine."""
        self._recent_wait_s = 0.0
        self._waiting: OrderedDict[_Ticket, None] = OrderedDict()
        self._unused_slots: dict[_Ticket, None] = {}
        """Requests that have a slot and whose task has not run since: the engine does not know them yet."""
        self._gathering: dict[str, _Gathering] = {}
        self._ready: FairQueue[_Ticket] = FairQueue()

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a slot."""
        return len(self._waiting)

    @property
    def age_s(self) -> float:
        """Seconds that the oldest waiting request has waited; 0 if none waits."""
        return asyncio.get_running_loop().time() - next(iter(self._waiting)).since if self._waiting else 0.0

    def stats(self) -> dict[str, float]:
        """Return figures for metrics, by name."""
        return {
            "queue_waiting": self.waiting,
            "queue_age_s": self.age_s,
            "queue_running": self.running,
            "batch_size_mean": mean(self.batch_sizes),
        }

    def check_room(self, n: int = 1) -> None:
        """Raise QueueFull if n more requests find no room now. Nothing is reserved."""
        if self.waiting + n > self.max_queue:
            raise QueueFull(
                f"{self.waiting} requests wait for the engine and {n} more are refused: its queue holds"
                f" {self.max_queue}. Try later, or use more engines.",
                retry_after_s=min(60, max(1, math.ceil(self._recent_wait_s))),
            )

    def of_group(self, env: str, group: Hashable) -> GroupQueue:
        """Return the Engine for the requests of one group."""
        return GroupQueue(self, env, group)

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        """Answer a request from outside, which is a group by itself. Raises QueueFull."""
        self.check_room()
        return await self.pass_on(token_ids, sampling, request_id, "", request_id)

    async def pass_on(
        self, token_ids: Sequence[int], sampling: Sampling, request_id: str, env: str, group: Hashable
    ) -> Completion:
        """Wait for a slot at the engine, then return its answer. Cancelling gives up slot and request."""
        if not await self._wait_for_slot(env, group, request_id):
            return Completion(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int32), "", "abort")
        try:
            return await self.engine.generate(token_ids, sampling, request_id=request_id)
        finally:
            self.running -= 1
            self._grant()

    async def abort(self, request_id: str) -> None:
        """End a request; see engines.sequence_migration.Abortable, which the engine must implement."""
        ticket = next((t for t in self._waiting if t.request_id == request_id), None)
        if ticket is not None:
            self._remove(ticket)
            ticket.has_slot.set_result(False)
            return
        ticket = next((t for t in self._unused_slots if t.request_id == request_id), None)
        if ticket is not None:
            ticket.aborted = True
            return
        assert isinstance(self.engine, Abortable), "peer_engine.migration_of refuses others"
        await self.engine.abort(request_id)

    def progress(self) -> dict[str, int]:
        """Return the tokens sampled so far by request id, without the requests that wait here."""
        assert isinstance(self.engine, Abortable), "peer_engine.migration_of refuses others"
        return self.engine.progress()

    async def _wait_for_slot(self, env: str, group: Hashable, request_id: str) -> bool:
        """Wait for a slot at the engine. Return False if the request was aborted before it had one."""
        loop = asyncio.get_running_loop()
        if self.max_wait_s <= 0 and not self._ready and self.running < self.max_running:
            self.running += 1
            self._record_wait(0.0)
            return True
        ticket = _Ticket(env, group, loop.time(), loop.create_future(), request_id)
        self._waiting[ticket] = None
        if self.max_wait_s > 0:
            self._gather(ticket, loop)
        else:
            self._ready.push(group, ticket)
            self._grant()
        try:
            has_slot = await ticket.has_slot
        except asyncio.CancelledError:
            if ticket.has_slot.cancelled():
                if ticket in self._waiting:
                    self._remove(ticket)
            elif ticket.has_slot.result():  # granted first, and cancelled before it could run
                self._return_slot(ticket)
            raise
        if ticket.aborted:
            self._return_slot(ticket)
            return False
        self._unused_slots.pop(ticket, None)
        return has_slot

    def _return_slot(self, ticket: _Ticket) -> None:
        """Give back a slot that was granted and not used."""
        del self._unused_slots[ticket]
        self.running -= 1
        self._grant()

    def _gather(self, ticket: _Ticket, loop: asyncio.AbstractEventLoop) -> None:
        """Add a request to the batch of its environment."""
        batch = self._gathering.get(ticket.env)
        if batch is None:
            timer = loop.call_later(self.max_wait_s, self._flush, ticket.env)
            batch = self._gathering[ticket.env] = _Gathering({}, timer)
        batch.tickets[ticket] = None
        if len(batch.tickets) >= self.max_batch:
            self._flush(ticket.env)

    def _flush(self, env: str) -> None:
        """Move the batch of an environment to the fair queue."""
        batch = self._gathering.pop(env)
        batch.timer.cancel()
        self.batch_sizes.observe(len(batch.tickets))
        for ticket in batch.tickets:
            self._ready.push(ticket.group, ticket)
        self._grant()

    def _grant(self) -> None:
        """Give free slots at the engine to the requests whose turn it is."""
        now = asyncio.get_running_loop().time() if self._ready else 0.0
        while self._ready and self.running < self.max_running:
            ticket = self._ready.pop()
            del self._waiting[ticket]
            if ticket.has_slot.cancelled():
                continue
            self.running += 1
            self._record_wait(now - ticket.since)
            self._unused_slots[ticket] = None
            ticket.has_slot.set_result(True)

    def _remove(self, ticket: _Ticket) -> None:
        """Remove a waiting request, wherever it waits."""
        del self._waiting[ticket]
        batch = self._gathering.get(ticket.env)
        if batch is None or ticket not in batch.tickets:
            self._ready.remove(ticket.group, ticket)
            return
        del batch.tickets[ticket]
        if not batch.tickets:
            batch.timer.cancel()
            del self._gathering[ticket.env]

    def _record_wait(self, seconds: float) -> None:
        self.waits_s.observe(seconds)
        self._recent_wait_s += WAIT_GAIN * (seconds - self._recent_wait_s)


@dataclass(frozen=True, slots=True)
class GroupQueue:
    """An Engine: the queue, for the requests of one group."""

    queue: RequestQueue
    env: str
    group: Hashable

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        """Queue a request, however many wait, and return the engine's answer."""
        return await self.queue.pass_on(token_ids, sampling, request_id, self.env, self.group)
