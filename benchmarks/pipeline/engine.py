"""ScriptedEngine: an Engine that writes what the workload's script says, as fast as the engine model lets it.

    request "epoch/prompt/attempt#sample/turn" -> script(prompt, sample).segments[turn] tokens; but for the last segment
    they end in a call

Every token carries the version that wrote it, also across pushes: a push notes how far each request had come. As in the
simulation, a prefix is in the cache while the weights that computed it are the engine's; the first sample of a group
computes the prompt for the others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from openrlhf_tir.simulation import engine_model
from openrlhf_tir.simulation.engine_model import EngineModel, ScaledClock
from openrlhf_tir.simulation.workload import Workload
from openrlhf_tir.types import Completion, GroupKey, Sampling

from .env import action_of

STOP = "</code>"


def parse(request_id: str) -> tuple[GroupKey, int, int]:
    """The inverse of how GroupRunner and episodes name a request: (group, sample, turn)."""
    key, _, rest = request_id.partition("#")
    sample, _, turn = rest.partition("/")
    return GroupKey(*map(int, key.split("/"))), int(sample), int(turn)


class _Request:
    """One segment under way. `marks`: (tokens written before, version that writes from there on)."""

    def __init__(self, version: int) -> None:
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.marks = [(0, version)]

    def over(self, ok: bool) -> None:
        if not self.done.done():
            self.done.set_result(ok)


class ScriptedEngine:
    def __init__(self, workload: Workload, scale: float) -> None:
        self.workload, self.scale, self.version = workload, scale, 0
        self.model = EngineModel(workload.engine, ScaledClock(asyncio.get_running_loop(), scale))
        self._requests: dict[engine_model.Sequence, _Request] = {}
        self._cached_by: dict[tuple[GroupKey, int], int] = {}
        """(group, sample) -> version under which its last segment ended."""

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        key, sample, turn = parse(request_id)
        script = self.workload.script(key, sample)
        n, request = script.segments[turn], _Request(self.version)
        fresh = script.observations[turn - 1] if turn else 0
        by = self._cached_by.pop((key, sample), None) if turn else self.version if sample else None
        sequence = self.model.submit(
            len(token_ids), n, request.over, cached_tokens=len(token_ids) - fresh if by == self.version else 0
        )
        self._requests[sequence] = request
        try:
            await request.done
        finally:
            del self._requests[sequence]
            if request.done.cancelled():
                self.model.cancel(sequence)
        versions = np.repeat([v for _, v in request.marks], np.diff([*(at for at, _ in request.marks), n])).astype(
            np.int32
        )
        ids, logprobs = np.ones(n, np.int32), np.zeros(n, np.float32)
        if turn == self.workload.tool_calls:
            return Completion(ids, logprobs, versions, "", "stop")
        self._cached_by[key, sample] = self.version
        action = action_of(script.latencies_s[turn] * self.scale, script.observations[turn])
        return Completion(ids, logprobs, versions, f"<code>{action}{STOP}", "stop", STOP)

    async def push(self, version: int) -> None:
        """New weights: nothing is written meanwhile, and the running prefixes are computed again."""
        self.model.pause()
        await asyncio.sleep(self.workload.engine.weight_push_s * self.scale)
        for sequence, written in self.model.in_flight():
            self._requests[sequence].marks.append((int(written), version))
        self.version = version
        self.model.resume(recompute=True)
