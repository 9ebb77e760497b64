"""Emulated engine: an Engine that sleeps like a cluster's, on the wall clock or on a virtual one. It computes nothing.

    request id -> script -> (tokens, text, stop) ; EngineModel says when they are written; `time_scale` wall-clock
    seconds per emulated one

For benchmarks of everything around an engine, and for load that no machine here could decode. Token ids are all TOKEN.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..errors import EngineError
from ..types import Completion, Sampling
from .engine_model import EngineModel, ScaledClock
from .workload import EngineSpec

TOKEN = 1


class Written(NamedTuple):
    """What the emulated model writes: `tokens` of them, saying `text`, which ends in `stop` unless the model ends by
    itself.

    `cached` tokens of the prompt need no prefill: the trajectory's own earlier turns.
    """

    tokens: int
    text: str = ""
    stop: str | None = None
    cached: int = 0


class EmulatedEngine:
    def __init__(
        self, spec: EngineSpec, script: Callable[[str], Written], *, time_scale: float = 1.0, version: int = 0
    ) -> None:
        """`script(request_id)` tells what the answer will be. Belongs to the running loop, whose clock it sleeps by."""
        self.model = EngineModel(spec, ScaledClock(asyncio.get_running_loop(), time_scale))
        self.script, self.version = script, version

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        """See Engine. More than `sampling.max_tokens` are cut, and the stop with them."""
        w = self.script(request_id)
        n = min(w.tokens, sampling.max_tokens)
        if not await self.model.generate(len(token_ids), n, cached_tokens=w.cached):
            raise EngineError(f"The emulated engine failed while it wrote {request_id}.")
        versions = np.full(n, self.version, np.int32)
        ids, logprobs = np.full(n, TOKEN, np.int32), np.zeros(n, np.float32)
        if n < w.tokens:
            return Completion(ids, logprobs, versions, w.text.removesuffix(w.stop or ""), "length")
        return Completion(ids, logprobs, versions, w.text, "stop", w.stop)
