"""Parts of `benchmarks.rollout`: one emulated rollout actor, on any clock. Real but for what sleeps.

Actor = GroupRunner -> run_episode (ReTool turns) -> RequestQueue -> EmulatedEngine
Tools: in this process (SleepingEnvs), or EnvClient by HTTP"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Self

from benchmarks.emulated_engine import EmulatedEngine, Written
from openrlhf_tir.config import Config
from openrlhf_tir.ports import Codec, Engine
from openrlhf_tir.protocol import StepReply
from openrlhf_tir.rollout.group_runner import Envs, GroupRunner
from openrlhf_tir.rollout.request_queue import RequestQueue
from openrlhf_tir.simulation.workload import PROMPT_TOKENS, Workload
from openrlhf_tir.types import Group, GroupKey, GroupMeta, Task, Verdict

from ..pipeline.config import ENV
from ..pipeline.engine import STOP, parse
from ..pipeline.env import action_of
from ..pipeline.parts import CharCodec, NoReward

KEEP = Verdict(True)
PROMPT = "p" * PROMPT_TOKENS


def script_of(w: Workload, scale: float) -> Callable[[str], Written]:
    """What the emulated model writes: the workload's segments, each but the last ending in a call with its duration."""
    scripts = lru_cache(maxsize=8192)(w.script)

    def script(request_id: str) -> Written:
        key, sample, turn, _ = parse(request_id)
        s = scripts(key, sample)
        cached = PROMPT_TOKENS + sum(s.segments[:turn]) + sum(s.observations[: turn - 1]) if turn else 0
        if turn == w.tool_calls:
            return Written(s.segments[turn], cached=cached)
        return Written(
            s.segments[turn],
            f"<code>{action_of(s.latencies_s[turn] * scale, s.observations[turn])}{STOP}",
            STOP,
            cached,
        )

    return script


class InProcessSession:
    """An EnvSession in this process, but for `step`: opened, begun and closed at no cost."""

    server = None
    """Nothing goes down here."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Holds nothing."""

    async def reset(self) -> str:
        return ""


class SleepingEnvs(InProcessSession):
    """Environments in this process: a call sleeps as long as its action says, at most `capacity` at once."""

    def __init__(self, capacity: int) -> None:
        self.room = asyncio.Semaphore(capacity)

    def session(self, env: str, task: dict[str, Any], *, seed: int) -> SleepingEnvs:
        return self

    async def step(self, action: str, *, step_id: int) -> StepReply:
        seconds, tokens = action.split()
        async with self.room:
            await asyncio.sleep(float(seconds))
        return StepReply.model_construct(
            session_id="s", step_id=step_id, observation="x" * int(tokens), outcome="ok", signals={}
        )


class Actor:
    """One rollout actor's moving parts."""

    def __init__(
        self,
        w: Workload,
        cfg: Config,
        envs: Envs,
        scale: float,
        codec: Codec | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.envs, self.codec = envs, codec or CharCodec()
        self.engine = engine or EmulatedEngine(w.engine, script_of(w, scale), time_scale=scale)
        r = cfg.rollout
        self.request_queue = RequestQueue(
            self.engine,
            max_wait_ms=r.max_wait_ms,
            max_running=cfg.max_running,
            max_queue=1 << 20,
        )
        self.runner = GroupRunner(cfg, self.request_queue, self.codec, envs, NoReward(), lambda group: KEEP)

    async def run(self, prompt: int) -> tuple[GroupMeta, Group]:
        meta, group = await self.runner.run(GroupKey(0, prompt), Task(PROMPT, "", ENV))
        if meta.failed or meta.failures:
            raise RuntimeError(f"group {prompt} had faults: {meta.failures}")
        return meta, group
