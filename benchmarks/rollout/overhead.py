"""Thousands of live trajectories on one actor: our own CPU per turn, the queue's waits, and memory, over 100,000 turns.

    ours    groups of 16, ever new ones, through GroupRunner, episodes, tokenizer and the queue (max_wait_ms = 20)
    http    the same with the environments in a server of their own, and EnvClient: a session, its steps and its end by
            HTTP
    bare    as many coroutines that call the same engine and the same environments, and nothing else

CPU is the process's, so the difference of the two is our code's. Engine (EmulatedEngine) and environments sleep in this
process; with 2,000 live trajectories a turn takes about three seconds, which makes some 700 turns per second, and the
engine always has room. With more of them the engine is as much slower: turns per second stay what one core can do, and
what grows with the number that live is seen."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.emulated_engine import EmulatedEngine
from openrlhf_tir.cluster.collector import freeze_what_is_loaded
from openrlhf_tir.engines.codec import HfCodec
from openrlhf_tir.ports import Codec
from openrlhf_tir.rollout.environment_client.client import EnvClient
from openrlhf_tir.simulation.workload import PROMPT_TOKENS, EngineSpec, Lognormal, Workload
from openrlhf_tir.telemetry.histogram import histogram, mean, quantile
from openrlhf_tir.types import GroupKey, Sampling

from ..envs.load import started
from ..pipeline.config import ENV, workload_config
from .parts import Actor, SleepingEnvs, script_of

LIVE, GROUP, WAIT_MS = 2000, 16, 20.0
SPREAD_S = 6.0
"""Over which the groups start, per 2,000 trajectories: their first requests at once would be a burst, not a load."""
TOKENS_PER_S = 100.0
"""The rate of each sequence, with 2,000 of them."""


def room_for(live: int) -> int:
    """Sequences that the engine and its queue take at once."""
    return 2 * live


def roomy(w: Workload, tokens_per_s: float, live: int = LIVE) -> Workload:
    """The workload's trajectories, their tail cut, on an engine and environments that always have room: every sequence
    decodes at that rate."""
    lengths, room = Lognormal(700, 1400, 2000), room_for(live)
    engine = EngineSpec(1, room, 1 << 32, ((1, tokens_per_s), (room, room * tokens_per_s)), 1e7, 0.0)
    return replace(
        w,
        engine=engine,
        response_tokens=lengths,
        env_latency_s=Lognormal(0.3, 2.0, 5.0),
        env_capacity=1 << 20,
        samples_per_prompt=GROUP,
    )


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Stretch:
    """CPU, wall and memory between two moments."""

    def __init__(self) -> None:
        self.cpu, self.wall, self.mib = time.process_time(), time.perf_counter(), resident_mib()

    def until_now(self) -> tuple[float, float, float]:
        return time.process_time() - self.cpu, time.perf_counter() - self.wall, resident_mib() - self.mib


async def ours(w: Workload, turns: int, codec: Codec, url: str | None = None, live: int = LIVE) -> dict[str, float]:
    cfg = workload_config(w, rollout={"max_wait_ms": WAIT_MS})
    envs = SleepingEnvs(w.env_capacity) if url is None else EnvClient.of(cfg.environments, {ENV: url})
    actor = Actor(w, cfg, envs, 1.0, codec)
    prompts, done = itertools.count(), 0
    per_group = GROUP * (w.tool_calls + 1)

    async def slot(number: int) -> None:
        nonlocal done
        await asyncio.sleep(SPREAD_S * number * GROUP / LIVE)
        while done < turns:
            await actor.run(next(prompts))
            done += per_group

    start = Stretch()
    async with asyncio.TaskGroup() as slots:  # one that fails ends the measurement: without it no turn may come
        for number in range(live // GROUP):
            slots.create_task(slot(number))
        while done < turns // 5:  # full load by now
            await asyncio.sleep(0.05)
        warm, at = Stretch(), done
        waits = actor.request_queue.waits_s = histogram("waits", "waits", [i / 2000 for i in range(1, 400)])
        while done < turns:
            await asyncio.sleep(0.05)
        _, wall, growth = warm.until_now()
        per_s = (done - at) / wall
    cpu, wall, _ = start.until_now()
    if isinstance(envs, EnvClient):
        await envs.close()
    return {
        "cpu_ms_per_turn": 1e3 * cpu / done,
        "turns": done,
        "turns_per_s": per_s,
        "cpu_share": cpu / wall,
        "queue_wait_p50_ms": 1e3 * quantile(waits, 0.5),
        "queue_wait_p99_ms": 1e3 * quantile(waits, 0.99),
        "batch_size_mean": mean(actor.request_queue.batch_sizes),
        "memory_growth_mib": growth,
        "memory_mib": resident_mib(),
    }


async def bare(w: Workload, turns: int, live: int = LIVE) -> float:
    """CPU milliseconds per turn of engine and environments alone."""
    engine, envs = EmulatedEngine(w.engine, script_of(w, 1.0)), SleepingEnvs(w.env_capacity)
    prompts, done = itertools.count(), 0

    async def trajectory(prompt: int, i: int) -> None:
        length = PROMPT_TOKENS
        for turn in range(w.tool_calls + 1):
            c = await engine.generate(range(length), Sampling(1 << 20), request_id=f"{GroupKey(0, prompt)}#{i}/{turn}")
            if c.stop_reason:
                reply = await envs.step(c.text.removeprefix("<code>").removesuffix("</code>"), step_id=turn)
                length += len(c.token_ids) + len(reply.observation)

    async def slot() -> None:
        nonlocal done
        while done < turns:
            prompt = next(prompts)
            await asyncio.gather(*(trajectory(prompt, i) for i in range(GROUP)))
            done += GROUP * (w.tool_calls + 1)

    start = Stretch()
    await asyncio.gather(*(slot() for _ in range(live // GROUP)))
    return 1e3 * start.until_now()[0] / done


def real_codec() -> HfCodec:
    from miniatures.toy.tokenizer import build_tokenizer

    return HfCodec(build_tokenizer())


def measure(w: Workload, turns: int, live: int = LIVE) -> dict[str, float]:
    w = roomy(w, TOKENS_PER_S * LIVE / live, live)
    codec = real_codec()
    freeze_what_is_loaded()  # as a rollout actor does
    alone = asyncio.run(bare(w, max(3 * live, turns // 5), live))
    found = asyncio.run(ours(w, turns, codec, live=live))
    return {"overhead_ms_per_turn": found["cpu_ms_per_turn"] - alone, "engine_and_env_cpu_ms_per_turn": alone, **found}


def measure_http(w: Workload, turns: int) -> dict[str, float]:
    """The engine is slower, so that one server keeps up; its own CPU is not counted."""
    w = replace(roomy(w, 60.0), env_capacity=256)
    with started(
        "benchmarks.pipeline.env", "--workers", "4096", "--max-sessions", "100000", "--max-queue", "100000"
    ) as (url, _):
        found = asyncio.run(ours(w, turns, real_codec(), url))
    return {"cpu_with_http_and_engine_ms_per_turn": found["cpu_ms_per_turn"], "http_turns": found["turns"]}
