"""Send steps of many trajectories as one streamed POST /step_batch, to servers whose /schema prefers batches.

    step -> does the server prefer batches? -- no --> POST /step
                 | yes
                 v
            gathering[server] -- max_batch steps, or the first waited max_wait_ms --> POST /step_batch
                -> NDJSON, one line per finished item

`send` is one attempt of one step. A reply is handed over when its line arrives, so no caller waits for the slowest
item. An item that is refused (outcome capacity) or missing raises for its own caller only, whose client sends it again
with the same step_id. An item whose session the server does not know raises EnvLost, as a single step's 404 does. A
line that is no valid reply fails the step that it names. A line that names none fails the steps without an answer if
there are as many such lines as steps; otherwise these steps are sent again. The steps of a batch that is too large for
the server (413) are sent one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from ...errors import EnvError, EnvTimeout, InfraError
from ...protocol import NO_SESSION, EnvSchema, StepReply, StepRequest
from .http import ActionTooLong, Broken, Full, InvalidReply, full, session_lost

Key = tuple[str, int]
"""(session id, step id)."""
MAX_BATCH = 64
"""Steps after which a batch is sent at once: a server that prefers batches has taken its gain by then."""
MAX_WAIT_MS = 100.0
"""How long the first step of a batch waits. Waiting pays up to the time that a batch takes at the server, which is this
and more where /schema prefers batches (`python -m benchmarks.rollout --only waiting`)."""


@dataclass(slots=True)
class _Batch:
    """Requests that are sent together.

    Attributes:
        timer: Sends the batch when its first request has waited long enough.
        requests: The requests.
        waiting: The callers of the requests without an answer.
        timeout_s: Deadline of the exchange in seconds: the longest of its requests.
        sending: The task that sends it.
        unnamed: Invalid lines that do not say which request they answer.
    """

    timer: asyncio.TimerHandle
    requests: dict[Key, StepRequest] = field(default_factory=dict)
    waiting: dict[Key, asyncio.Future[StepReply]] = field(default_factory=dict)
    timeout_s: float = 0.0
    sending: asyncio.Task[None] | None = None
    unnamed: list[InvalidReply] = field(default_factory=list)

    def add(self, request: StepRequest, timeout_s: float) -> asyncio.Future[StepReply]:
        key = (request.session_id, request.step_id)
        future = asyncio.get_running_loop().create_future()
        self.requests[key] = request
        self.waiting[key] = future
        self.timeout_s = max(self.timeout_s, timeout_s)
        return future

    def answer(self, reply: StepReply | InvalidReply) -> None:
        step = reply.step if isinstance(reply, InvalidReply) else (reply.session_id, reply.step_id)
        key = next((key for key in self.waiting if key == step), None)  # an invalid step may not be hashable
        if key is None:
            if isinstance(reply, InvalidReply):
                self.unnamed.append(reply)
            return
        future = self.waiting.pop(key)
        if future.done():
            return
        if isinstance(reply, InvalidReply):
            future.set_exception(reply)
        elif reply.outcome == "capacity":
            future.set_exception(full(reply))
        elif NO_SESSION in reply.signals:
            future.set_exception(session_lost(str(reply.signals.get("error", "no reason given"))))
        else:
            future.set_result(reply)

    def end(self, server: str) -> None:
        """Raise in every caller that has no answer, since the stream has ended."""
        if self.unnamed and len(self.unnamed) >= len(self.waiting):
            self.fail(self.unnamed[0])
        else:
            self.fail(Broken(f"{server}/step_batch ended without an answer to {len(self.waiting)} of its steps"))

    def fail(self, fault: Exception) -> None:
        """Raise `fault` in every caller that has no answer yet."""
        for future in self.waiting.values():
            if not future.done():
                future.set_exception(fault)
        self.waiting.clear()

    @property
    def is_abandoned(self) -> bool:
        """True if every caller was cancelled."""
        return all(future.cancelled() for future in self.waiting.values())


class StepBatches:
    """Gathers the steps of one EnvClient, on one event loop."""

    def __init__(
        self,
        schema_of: Callable[[str], Awaitable[EnvSchema]],
        post: Callable[[str, StepRequest, float], Awaitable[StepReply]],
        post_batch: Callable[..., AsyncGenerator[StepReply | InvalidReply, None]],
        *,
        max_batch: int = MAX_BATCH,
        max_wait_ms: float = MAX_WAIT_MS,
    ) -> None:
        """Create an empty gatherer.

        Args:
            schema_of: Base URL -> schema of the server. Errors are those of EnvHttp.send.
            post: Sends one step.
            post_batch: Sends a batch: EnvHttp.step_batch.
            max_batch: Steps of a batch at most.
            max_wait_ms: Milliseconds that the first step of a batch waits for others.
        """
        self._schema_of = schema_of
        self._post = post
        self._post_batch = post_batch
        self.max_batch = max_batch
        self.max_wait_s = max_wait_ms / 1000
        self._asked: dict[str, asyncio.Task[bool]] = {}
        """Server -> the request that asks whether it prefers batches, unless that failed."""
        self._unanswered: set[str] = set()
        """Servers that were asked and did not answer yet."""
        self._gathering: dict[str, _Batch] = {}
        self._sent: set[asyncio.Task[None]] = set()

    async def send(self, server: str, request: StepRequest, timeout_s: float) -> StepReply:
        """Send one step, with others if the server prefers that.

        Args:
            server: Base URL.
            request: The step.
            timeout_s: Seconds to wait for the reply.

        Raises:
            EnvTimeout: The batch has not answered this step in time. Other errors are those of EnvHttp.send.
        """
        if not await self._prefers_batches(server):
            return await self._post(server, request, timeout_s)
        batch = self._batch(server)
        answer = batch.add(request, timeout_s)
        if len(batch.requests) >= self.max_batch:
            self._flush(server)
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    return await answer
                except ActionTooLong:  # an action of the batch, or all together: alone, only those are refused again
                    return await self._post(server, request, timeout_s)
        except TimeoutError:
            raise EnvTimeout(
                f"{server}/step_batch did not answer step {request.step_id} within {timeout_s:.3g} s. Add env workers."
            ) from None
        finally:
            if batch.sending and batch.waiting and batch.is_abandoned:
                batch.sending.cancel()

    def close(self) -> None:
        """Cancel the requests that ask for a schema."""
        for asked in self._asked.values():
            asked.cancel()

    async def _prefers_batches(self, server: str) -> bool:
        """Return True if the server prefers batches. It is asked until it has answered once.

        Only the first steps wait for that: a busy server may never have time for it.
        """
        if server not in self._asked:
            self._asked[server] = asyncio.create_task(self._read_preference(server), name=f"schema of {server}")
        return server not in self._unanswered and await asyncio.shield(self._asked[server])

    async def _read_preference(self, server: str) -> bool:
        try:
            prefers = (await self._schema_of(server)).prefers_batches
        except (Broken, Full, EnvTimeout):  # it is busy or starts: the next step asks again
            self._unanswered.add(server)
            del self._asked[server]
            return False
        except EnvError:
            prefers = False  # a server without /schema: single steps always work
        except BaseException:
            del self._asked[server]
            raise
        self._unanswered.discard(server)
        return prefers

    def _batch(self, server: str) -> _Batch:
        if server not in self._gathering:
            timer = asyncio.get_running_loop().call_later(self.max_wait_s, self._flush, server)
            self._gathering[server] = _Batch(timer)
        return self._gathering[server]

    def _flush(self, server: str) -> None:
        batch = self._gathering.pop(server)
        batch.timer.cancel()
        if batch.is_abandoned:
            return
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
            batch.end(server)
        except (ActionTooLong, Full, Broken, InfraError) as fault:
            batch.fail(fault)
        except BaseException:
            batch.fail(Broken("the batch was cancelled"))
            raise
