"""HfLearner that broadcasts: plain transformers weights through the learner's end, in small buckets; no DeepSpeed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from openrlhf_tir.pushes import BroadcastRendezvous, BroadcastResult

from .tiny_model import HfLearner

DEADLINE_S = 30.0


class BroadcastLearner(HfLearner):
    def __init__(self, seed: int, scale: float = 8.0, bucket_bytes: int = 100_000) -> None:
        from openrlhf_tir.weights.broadcast.sender import Sender

        super().__init__(seed, scale)
        self.sender, self.bucket_bytes, self.opened = Sender(), bucket_bytes, 0
        self.between: Callable[[int], None] = lambda n: None
        """Runs before bucket n is sent."""

    async def open_broadcast(self, receivers: int) -> BroadcastRendezvous:
        self.opened += 1
        return self.sender.open("gloo", "127.0.0.1", receivers, DEADLINE_S)

    async def broadcast(self, push: str) -> BroadcastResult:
        items, parts = self.buckets(self.bucket_bytes)

        def gathered():
            for n, part in enumerate(parts):
                self.between(n)
                yield part

        self.pushing = push
        return await asyncio.to_thread(self.sender.send, push, items, gathered())

    async def end_broadcast(self, push: str, why: str) -> None:
        await asyncio.to_thread(self.sender.end, push, why)
