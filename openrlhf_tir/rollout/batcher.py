"""Batcher: ready trajectories wait briefly and go to the engine together. The actor's message queue in front of `generate`.

    generate() -> waiting list -> flush when `max_batch` wait or the first has waited `max_wait_ms` -> engine

With `max_wait_ms = 0` (the default: continuous batching makes waiting useless on vLLM) requests pass straight through.
A flush never waits for its slowest item: every request has its own future.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from ..types import Completion, Sampling
from .engine import Engine


class Batcher:
    """An Engine in front of an Engine. `sizes` counts flushed batch sizes (a power-of-two histogram)."""

    def __init__(self, engine: Engine, *, max_wait_ms: float = 0.0, max_batch: int = 256) -> None:
        self.engine, self.max_wait_s, self.max_batch = engine, max_wait_ms / 1000, max_batch
        self.sizes: Counter[int] = Counter()
        self._waiting: list[asyncio.Future] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        if self.max_wait_s > 0:
            await self._ready()
        return await self.engine.generate(token_ids, sampling, request_id=request_id)

    async def _ready(self) -> None:
        """Return when the batch that this request belongs to is flushed."""
        loop = asyncio.get_running_loop()
        ticket = loop.create_future()
        self._waiting.append(ticket)
        if len(self._waiting) >= self.max_batch:
            self._flush()
        elif self._timer is None:
            self._timer = loop.call_later(self.max_wait_s, self._flush)
        await ticket

    def _flush(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = None
        batch, self._waiting = self._waiting, []
        live = [f for f in batch if not f.cancelled()]
        if live:
            self.sizes[1 << (len(live) - 1).bit_length()] += 1
        for f in live:
            f.set_result(None)
