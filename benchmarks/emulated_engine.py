"""An engine that answers when a cluster's engine would, and computes nothing. It sleeps by the clock of its event loop.

    request id ──> script ──> tokens, text, stop string
    EngineModel ──> when they are written; `time_scale` is the wall-clock seconds of an emulated second

It is for benchmarks of everything around an engine, and for load that no machine here could decode. Every token id is
TOKEN.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from openrlhf_tir.errors import EngineError
from openrlhf_tir.simulation.engine_model import Clock, EngineModel, Timer
from openrlhf_tir.simulation.workload import EngineSpec
from openrlhf_tir.types import Completion, Sampling

TOKEN = 1


class ScaledClock:
    """A clock whose seconds last `scale` seconds of another clock."""

    def __init__(self, loop: Clock, scale: float) -> None:
        self.loop = loop
        self.scale = scale

    def time(self) -> float:
        """See Clock."""
        return self.loop.time() / self.scale

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Timer:
        """See Clock."""
        return self.loop.call_at(when * self.scale, callback, *args)


class Written(NamedTuple):
    """What the emulated model writes in answer to one request.

    Attributes:
        tokens: Number of tokens.
        text: Their text.
        stop: The stop string in which the text ends; None if the model ends by itself.
        cached: Tokens of the prompt that need no prefill, because they are earlier turns of the same trajectory.
    """

    tokens: int
    text: str = ""
    stop: str | None = None
    cached: int = 0


class EmulatedEngine:
    """An Engine (see ports.py) on an EngineModel. It belongs to the event loop that runs when it is created."""

    def __init__(
        self, spec: EngineSpec, script: Callable[[str], Written], *, time_scale: float = 1.0, version: int = 0
    ) -> None:
        """Create an engine.

        Args:
            spec: Its speed and size.
            script: Returns the answer to a request id.
            time_scale: Seconds of the event loop's clock for each emulated second.
            version: Version of the weights with which every token is marked.
        """
        self.model = EngineModel(spec, ScaledClock(asyncio.get_running_loop(), time_scale))
        self.script = script
        self.version = version

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        """See Engine. An answer longer than `sampling.max_tokens` is cut and loses its stop string.

        Raises:
            EngineError: The engine was made to fail meanwhile.
        """
        answer = self.script(request_id)
        count = min(answer.tokens, sampling.max_tokens)
        if not await self.model.generate(len(token_ids), count, cached_tokens=answer.cached):
            raise EngineError(f"The emulated engine failed while it wrote {request_id}.")
        versions = np.full(count, self.version, np.int32)
        ids = np.full(count, TOKEN, np.int32)
        logprobs = np.zeros(count, np.float32)
        if count < answer.tokens:
            return Completion(ids, logprobs, versions, answer.text.removesuffix(answer.stop or ""), "length")
        return Completion(ids, logprobs, versions, answer.text, "stop", answer.stop)
