"""HfLearner that exposes its weights in shared memory, a CPU stand-in for CUDA IPC, bucket by bucket. No DeepSpeed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from openrlhf_tir.pushes import EXPOSED_BUCKETS, Exposed

from .tiny_model import HfLearner


class ExposingLearner(HfLearner):
    def __init__(self, seed: int, scale: float = 8.0, bucket_bytes: int = 1 << 30) -> None:
        import torch

        from openrlhf_tir.weights.ipc.exposer import Exposer

        super().__init__(seed, scale)
        self.exposer = Exposer(torch.device("cpu"))
        self.bucket_bytes = bucket_bytes
        self.exposures: list[tuple[str, int]] = []
        """(push, first bucket) of every call."""
        self.after: Callable[[Exposed], Exposed] = lambda exposed: exposed
        """Changes what is exposed, or raises."""

    async def expose_trial(self) -> Exposed:
        return self.exposer.trial()

    async def expose(self, push: str, first: int) -> Exposed:
        self.exposures.append((push, first))
        return self.after(await asyncio.to_thread(self._expose, push, first))

    def _expose(self, push: str, first: int) -> Exposed:
        items, parts = self.buckets(self.bucket_bytes)
        self.exposer.reserve(items)
        end = min(first + (1 if first else EXPOSED_BUCKETS), len(parts))
        buckets = [self.exposer.fill(n, items[n], parts[n]) for n in range(first, end)]
        return Exposed(push, buckets, len(parts) - end)
