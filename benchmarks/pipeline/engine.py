"""ScriptedEngine: an Engine that writes what the workload's script says, as fast as the engine model lets it.

    request "epoch/prompt/attempt#sample/turn" -> script(prompt, sample).segments[turn] tokens; but for the last segment
    they end in a call

Every token carries the version that wrote it, also across pushes: a push notes how far each request had come. As in the
simulation, a prefix is in the cache while the weights that computed it are the engine's, or for good where pushes keep
it (pipeline.kv_after_push); the first sample of a group computes the prompt for the others.

A request can be stopped and go on at another engine (rollout/sequence_migration.py). What it has written shows in the
ids: model
tokens are WRITTEN, the last one of a call says whose, and everything else is 1 (CharCodec)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.emulated_engine import ScaledClock
from openrlhf_tir.errors import EngineError
from openrlhf_tir.simulation import engine_model
from openrlhf_tir.simulation.engine_model import EngineModel
from openrlhf_tir.simulation.workload import Workload
from openrlhf_tir.types import Completion, GroupKey, Sampling

from .env import action_of

STOP = "</code>"
WRITTEN, CALL = 0, 2
"""Ids: a model token; the last of a call, plus a number that says which."""


class Asked(NamedTuple):
    """A request's name, read. `part`: of a segment that several engines write, 0 the first."""

    key: GroupKey
    sample: int
    turn: int
    part: int = 0


def parse(request_id: str) -> Asked:
    """The inverse of how GroupRunner, episodes and migration name a request."""
    key, _, rest = request_id.partition("#")
    sample, _, rest = rest.partition("/")
    turn, _, part = rest.partition("~")
    return Asked(GroupKey(*map(int, key.split("/"))), int(sample), int(turn), int(part or 0))


def written_before(token_ids: Sequence[int]) -> int:
    """Model tokens at the end of a context: those of the segment that other engines wrote."""
    return next((n for n, token in enumerate(reversed(token_ids)) if token != WRITTEN), len(token_ids))


class _Request:
    """One segment, or part of one, under way. `marks`: (tokens written before, version that writes from there on).
    `done`: how many tokens it wrote."""

    def __init__(self, name: str, tokens: int, version: int) -> None:
        self.name, self.tokens = name, tokens
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.marks = [(0, version)]

    def over(self, ok: bool) -> None:
        if self.done.done():
            return
        if ok:
            self.done.set_result(self.tokens)
        else:
            self.done.set_exception(EngineError(f"The emulated engine failed while it wrote {self.name}."))


class ScriptedEngine:
    def __init__(self, workload: Workload, scale: float, *, keeps_kv: bool = False) -> None:
        self.workload, self.scale, self.version, self.keeps_kv = workload, scale, 0, keeps_kv
        self.model = EngineModel(workload.engine, ScaledClock(asyncio.get_running_loop(), scale))
        self._requests: dict[engine_model.Sequence, _Request] = {}
        self._cached: dict[tuple[GroupKey, int], tuple[int, int]] = {}
        """(group, sample) -> version under which the last segment ended that was written here, context then."""

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        asked = parse(request_id)
        key, sample, turn, part = asked
        script = self.workload.script(key, sample)
        n = script.segments[turn] - (written_before(token_ids) if part else 0)
        fresh = script.observations[turn - 1] if turn else 0
        by, there = self._cached.pop((key, sample), (None, 0)) if turn else self._of_the_group(sample, token_ids)
        has = not part and by is not None and (self.keeps_kv or by == self.version)
        request = _Request(request_id, n, self.version)
        cached = min(there, len(token_ids) - fresh) if has else 0
        sequence = self.model.submit(len(token_ids), n, request.over, cached_tokens=cached)
        self._requests[sequence] = request
        try:
            n = await request.done
        finally:
            del self._requests[sequence]
            if request.done.cancelled():
                self.model.cancel(sequence)
        versions = np.repeat([v for _, v in request.marks], np.diff([*(at for at, _ in request.marks), n])).astype(
            np.int32
        )
        ids, logprobs = np.full(n, WRITTEN, np.int32), np.zeros(n, np.float32)
        if n < request.tokens:
            return Completion(ids, logprobs, versions, "", "abort")
        if turn == self.workload.tool_calls:
            return Completion(ids, logprobs, versions, "", "stop")
        self._cached[key, sample] = self.version, len(token_ids) + n
        ids[-1] = CALL + self._number(asked)
        return Completion(ids, logprobs, versions, self._call(asked), "stop", STOP)

    def _of_the_group(self, sample: int, token_ids: Sequence[int]) -> tuple[int | None, int]:
        """A first turn's: the prompt, which the group's first sample computes."""
        return (self.version, len(token_ids)) if sample else (None, 0)

    def _number(self, asked: Asked) -> int:
        """Tells the call that ends the segment from all others of an epoch, and EndlessPrompts has one. An id is an
        int32: 40 million prompts of 16 samples and three turns."""
        w = self.workload
        return (asked.key.prompt * w.samples_per_prompt + asked.sample) * w.tool_calls + asked.turn

    def _call(self, asked: Asked) -> str:
        script = self.workload.script(asked.key, asked.sample)
        action = action_of(script.latencies_s[asked.turn] * self.scale, script.observations[asked.turn])
        return f"<code>{action}{STOP}"

    def text_of(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> str:
        """What was written, of a segment that is whole; its call, if it ends in one (sequence_migration.TextOf)."""
        if not len(token_ids) or token_ids[-1] < CALL:
            return ""
        w = self.workload
        response, turn = divmod(token_ids[-1] - CALL, w.tool_calls)
        prompt, sample = divmod(response, w.samples_per_prompt)
        return self._call(Asked(GroupKey(0, prompt), sample, turn))

    # --- rollout/sequence_migration.py

    async def abort(self, request_id: str) -> None:
        """Answered with what it has written, which may be all."""
        for sequence, request in self._requests.items():
            if request.name == request_id and not request.done.done():
                request.done.set_result(int(self.model.written(sequence)))
                self.model.cancel(sequence)
                return

    def progress(self) -> dict[str, int]:
        return {self._requests[sequence].name: int(written) for sequence, written in self.model.in_flight()}

    async def push(self, version: int) -> None:
        """New weights: nothing is written meanwhile, and the running prefixes are computed again, unless they are
        kept."""
        self.model.pause()
        await asyncio.sleep(self.workload.engine.weight_push_s * self.scale)
        for sequence, written in self.model.in_flight():
            self._requests[sequence].marks.append((int(written), version))
        self.version = version
        self.model.resume(recompute=not self.keeps_kv)
