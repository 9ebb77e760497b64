"""Step batches: steps of many trajectories -> one streamed POST /step_batch, for servers whose /schema prefers batches.

    step -> does the server prefer batches? -- no --> POST /step
                 | yes
                 v
            gathering[server] -- max_batch, or the first waited max_wait_ms --> POST /step_batch
                -> NDJSON, a line per finished item

Takes the place of EnvClient.send_step: one attempt of one step. A reply is handed over when its line arrives, so nobody
waits for the slowest; one that is refused (outcome capacity) or missing raises for its own caller alone, whose client
sends it again with the same step_id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from ..errors import EnvError, EnvTimeout, InfraError
from ..logs.histogram import histogram
from ..protocol import EnvSchema, StepReply, StepRequest
from .http import Broken, Full
from .refusals import seconds

Key = tuple[str, int]
SIZE_BOUNDS = tuple(float(1 << i) for i in range(11))


@dataclass(slots=True)
class _Batch:
    """Requests that go together; `waiting` holds the callers of each, two when a step is hedged."""

    timer: asyncio.TimerHandle
    requests: dict[Key, StepRequest] = field(default_factory=dict)
    waiting: dict[Key, list[asyncio.Future[StepReply]]] = field(default_factory=dict)
    timeout_s: float = 0.0
    sending: asyncio.Task[None] | None = None

    def add(self, request: StepRequest, timeout_s: float) -> asyncio.Future[StepReply]:
        key = (request.session_id, request.step_id)
        future = asyncio.get_running_loop().create_future()
        self.requests.setdefault(key, request)
        self.waiting.setdefault(key, []).append(future)
        self.timeout_s = max(self.timeout_s, timeout_s)
        return future

    def answer(self, reply: StepReply) -> None:
        for future in self.waiting.pop((reply.session_id, reply.step_id), ()):
            if future.done():
                continue
            if reply.outcome == "capacity":
                future.set_exception(Full(seconds(str(reply.signals.get("retry_after_s", "")))))
            else:
                future.set_result(reply)

    def fail(self, fault: Exception) -> None:
        """Everybody who has no answer yet gets the fault."""
        for future in (f for futures in self.waiting.values() for f in futures):
            if not future.done():
                future.set_exception(fault)
        self.waiting.clear()

    @property
    def given_up(self) -> bool:
        return all(f.cancelled() for futures in self.waiting.values() for f in futures)


class StepBatches:
    """Belongs to one event loop and one EnvClient."""

    def __init__(
        self,
        ask: Callable[[str], Awaitable[EnvSchema]],
        post: Callable[[str, StepRequest, float], Awaitable[StepReply]],
        post_batch: Callable[..., AsyncGenerator[StepReply, None]],
        *,
        max_batch: int = 64,
        max_wait_ms: float = 5.0,
    ) -> None:
        """`ask` is EnvClient.check, `post` sends one step, `post_batch` is EnvHttp.step_batch."""
        self._ask, self._post, self._post_batch = ask, post, post_batch
        self.max_batch, self.max_wait_s = max_batch, max_wait_ms / 1000
        self.sizes = histogram("step_batch_size", "calls per request", SIZE_BOUNDS)
        self._prefers: dict[str, asyncio.Task[bool]] = {}
        self._gathering: dict[str, _Batch] = {}
        self._sent: set[asyncio.Task[None]] = set()

    async def __call__(self, server: str, request: StepRequest, timeout_s: float) -> StepReply:
        """Raises as EnvHttp does: Full, Broken, EnvTimeout, EnvError."""
        if not await self._prefers_batches(server):
            return await self._post(server, request, timeout_s)
        batch = self._batch(server)
        answer = batch.add(request, timeout_s)
        if len(batch.requests) >= self.max_batch:
            self._flush(server)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise EnvTimeout(
                f"{server}/step_batch did not answer step {request.step_id} within {timeout_s:.3g} s. Add env workers."
            ) from None
        finally:
            if batch.sending and batch.waiting and batch.given_up:  # nobody waits for the rest
                batch.sending.cancel()

    async def _prefers_batches(self, server: str) -> bool:
        """Whether the server prefers batches; each server is asked once."""
        if server not in self._prefers:
            self._prefers[server] = asyncio.create_task(self._schema_says(server), name=f"schema of {server}")
        return await asyncio.shield(self._prefers[server])

    async def _schema_says(self, server: str) -> bool:
        """False for one that has no /schema to show: single steps always work."""
        try:
            return (await self._ask(server)).prefers_batches
        except EnvError:
            return False

    def _batch(self, server: str) -> _Batch:
        if server not in self._gathering:
            timer = asyncio.get_running_loop().call_later(self.max_wait_s, self._flush, server)
            self._gathering[server] = _Batch(timer)
        return self._gathering[server]

    def _flush(self, server: str) -> None:
        batch = self._gathering.pop(server)
        batch.timer.cancel()
        if batch.given_up:
            return
        self.sizes.observe(len(batch.requests))
        batch.sending = asyncio.create_task(
            self._send(server, batch), name=f"step_batch of {len(batch.requests)} to {server}"
        )
        self._sent.add(batch.sending)
        batch.sending.add_done_callback(self._sent.discard)

    async def _send(self, server: str, batch: _Batch) -> None:
        requests: Sequence[StepRequest] = list(batch.requests.values())
        try:
            async with aclosing(self._post_batch(server, requests, timeout_s=batch.timeout_s)) as replies:
                async for reply in replies:
                    batch.answer(reply)
            batch.fail(Broken(f"{server}/step_batch ended without an answer to some of its {len(requests)} steps"))
        except (Full, Broken, InfraError) as fault:
            batch.fail(fault)
        except BaseException:
            batch.fail(Broken("the batch was given up"))
            raise
