"""python -m benchmarks.rollout.faults: what a broken environment or a killed actor costs everybody else.

Environments. One process (the actor's side: groups, episodes, environment client; the engine is emulated) keeps groups
of two environments rolling, each with a server process of its own. One server breaks, the other does not. Measured in
the same run, window by window: both well, one broken, both well again. Compared: valid trajectories per second of the
*other* environment, broken window against the mean of the windows before and after; divided by the same of a control, a
process beside it which never sees the broken environment, so that what the machine does is not taken for the fault's.

    other_env_ratio      the worst fault's; 1.0 is untouched
    recovery_s           from the end of the fault to the first valid trajectory of the broken environment; the slowest
    trained_on_fault     trajectories that count as valid although a call of theirs was not properly answered
    valid_while_broken   must be 0 as well, once those that were through when the fault began have ended

Actors. Two actors as Ray processes (EmulatedActor) with at least 500 live trajectories each; one is killed with -9.
Groups are issued again as the pipeline does. The whole training loop over a killed actor is
tests/e2e/test_rollout_pool.py.

    reissues_max         of one group
    prompts_lost         groups that never came back
    rejoin_s             until another actor has taken the dead one's place
    orphans              sessions of the dead actor that are still open at the end
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.command import command_parser
from openrlhf_tir.cluster.engine_pool import EnginePool
from openrlhf_tir.cluster.ray_session import ray_session
from openrlhf_tir.errors import EngineGone
from openrlhf_tir.pipeline.scheduler.core import MAX_RETRIES
from openrlhf_tir.rollout.environment_client.client import EnvClient, EnvLimits
from openrlhf_tir.rollout.group_runner import GroupRunner
from openrlhf_tir.types import GroupKey, Task

from .fault_actor import EmulatedActor
from .fault_parts import (
    START_TIMEOUT_S,
    config,
    fault_server,
    patience,
    runner,
    sessions,
    set_fault,
    trained_on_a_fault,
)

ENV_FAULTS = ("hang", "reset connection", "500", "invalid JSON", "wrong schema", "huge body", "down")
SEGMENT_S = 0.5
LIVE = 500
"""Trajectories of an actor when it is killed, at least."""
GROUPS, SAMPLES = 24, 4
"""Rolling at once, per environment; many small ones, so that a window does not begin or end with a large group."""


@dataclass
class Env:
    """What one environment's groups came to."""

    name: str
    valid: list[float] = field(default_factory=list)
    """When each valid trajectory ended."""
    failures: Counter = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def rate(self, start: float, end: float) -> float:
        return sum(start <= t < end for t in self.valid) / (end - start)


async def roll_forever(groups: GroupRunner, env: Env, lane: int) -> None:
    attempt = 0
    await asyncio.sleep(lane * 6 * SEGMENT_S / GROUPS)  # out of step with the others
    while True:
        attempt += 1
        key = GroupKey(lane, attempt)
        meta, group = await groups.run(
            key,
            Task("p", "", env.name),
            on_trajectory=lambda t: env.valid.append(time.monotonic()) if t.failed is None else None,
        )
        env.failures.update(meta.failures)
        env.wrong += trained_on_a_fault(group)
        if meta.failed:
            await asyncio.sleep(1)  # the pipeline's first pause before it issues a group again


async def control(url: str) -> None:
    """The same groups of one well environment, in its own process, until stdin ends: a line when they roll, and when
    valid trajectories ended."""
    cfg, env = config(Path.cwd(), n=SAMPLES), Env("control")
    async with EnvClient({"control": url}, limits={"": EnvLimits.of(cfg.env)}) as client:
        groups = runner(cfg, client, SEGMENT_S)
        rolling = [asyncio.create_task(roll_forever(groups, env, lane)) for lane in range(GROUPS)]
        print("rolling", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for task in rolling:
            task.cancel()
        await asyncio.gather(*rolling, return_exceptions=True)
    print(json.dumps(env.valid))


async def rolls(beside: asyncio.subprocess.Process) -> None:
    """Until the control has started: what it did not yet do in a window would be taken for the machine's mood."""
    assert beside.stdout is not None
    if not await asyncio.wait_for(beside.stdout.readline(), START_TIMEOUT_S):
        raise RuntimeError(f"The control ended with {await beside.wait()}; its message is above.")


async def measure_envs(faults: tuple[str, ...], window_s: float, down_s: float, directory: Path) -> dict:
    cfg = config(directory, n=SAMPLES)
    bad, good, alone = Env("bad"), Env("good"), Env("control")
    with (
        fault_server(directory, "bad") as bad_url,
        fault_server(directory, "good") as good_url,
        fault_server(directory, "control") as control_url,
    ):
        command = [sys.executable, "-m", "benchmarks.rollout.faults", "--control", control_url]
        beside = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 26
        )
        await rolls(beside)
        urls = {"bad": bad_url, "good": good_url}
        limits = {"": EnvLimits.of(cfg.env)}
        async with EnvClient(urls, limits=limits) as client, asyncio.TaskGroup() as tg:
            groups = runner(cfg, client, SEGMENT_S)
            rolling = [tg.create_task(roll_forever(groups, env, lane)) for env in (bad, good) for lane in range(GROUPS)]
            await asyncio.sleep(20 * SEGMENT_S)
            times = {fault: await one_fault(fault, bad, bad_url, window_s, down_s) for fault in faults}
            for task in rolling:
                task.cancel()
        alone.valid = json.loads((await beside.communicate(b""))[0])
    return {
        "faults": {fault: described(t, bad, good, alone) for fault, t in times.items()},
        "wrong": bad.wrong + good.wrong,
        "other_failures": dict(good.failures),
        "failures": dict(bad.failures),
    }


async def one_fault(fault: str, bad: Env, bad_url: str, window_s: float, down_s: float) -> list[float]:
    """[well from, broken from, well again from, first valid one, measured again from, to], by the monotonic clock,
    which processes share."""
    now = time.monotonic
    times = [now()]
    await asyncio.sleep(window_s)
    times.append(now())
    await set_fault(bad_url, fault, down_s)
    await asyncio.sleep(down_s if fault == "down" else window_s)
    times.append(now())
    if fault != "down":
        await set_fault(bad_url, "")
    async with patience(f"a valid trajectory after {fault}"):
        while not bad.valid or bad.valid[-1] < times[2]:
            await asyncio.sleep(0.02)
    times.append(now())
    await asyncio.sleep(6 * SEGMENT_S)  # its groups are rolling again
    times.append(now())
    await asyncio.sleep(window_s)
    print(f"{fault}: done", flush=True)
    return [*times, now()]


def described(t: list[float], bad: Env, good: Env, alone: Env) -> dict[str, float]:
    def slowdown(env: Env) -> float:
        return env.rate(t[1], t[2]) / ((env.rate(t[0], t[1]) + env.rate(t[4], t[5])) / 2)

    return {
        "other_env_ratio": round(slowdown(good) / slowdown(alone), 3),
        "machine": round(slowdown(alone), 3),
        "other_env_per_s": round(good.rate(t[0], t[1]), 1),
        # What had its last answer when the fault began may still end: within a whole trajectory.
        "valid_while_broken": sum(t[1] + 9 * SEGMENT_S < v < t[2] for v in bad.valid),
        "recovery_s": round(t[3] - t[2], 2),
        "rate_after": round(bad.rate(t[4], t[5]) / max(bad.rate(t[0], t[1]), 1e-9), 3),
    }


async def measure_kill(directory: Path) -> dict:
    n = 32
    cfg = config(directory, n=n, rollout={"max_wait_ms": 1000 * SEGMENT_S}, vllm={"num_engines": 2})
    reissues: Counter[int] = Counter()
    wrong: list[str] = []

    async def roll(pool: EnginePool, prompt: int) -> None:
        for attempt in range(MAX_RETRIES + 1):
            try:
                meta, payload = await pool.run_group(GroupKey(0, prompt, attempt), Task(f"p{prompt}", "", "echo"))
            except EngineGone:
                reissues[prompt] += 1
                await asyncio.sleep(1)
                continue
            if meta.failed is None:
                wrong.extend(trained_on_a_fault((await pool.fetch([payload]))[0]))
                return
        raise RuntimeError(f"group {prompt} never came back")

    with fault_server(directory) as url, ray_session(cfg):
        pool = await EnginePool(cfg, {"echo": [url]}, EmulatedActor).start()
        victim = pool.members[0]
        pid = await victim.actor.pid.remote()
        rolling = [asyncio.create_task(roll(pool, i)) for i in range(34)]
        async with patience(f"{LIVE} live trajectories at once of an actor, which a busy machine does not have"):
            while (live := len([s for s in (await sessions(url))["open"] if s.startswith(victim.owner)])) < LIVE:
                await asyncio.sleep(0.02)
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        async with patience("another actor in the dead one's place"):
            while victim in pool.members or len(pool.members) < 2:
                await asyncio.sleep(0.02)
        rejoin_s = time.monotonic() - killed
        ends = await asyncio.gather(*rolling, return_exceptions=True)
        orphans = [s for s in (await sessions(url))["open"] if s.startswith(victim.owner)]
        await pool.stop()
    return {
        "live_when_killed": live,
        "groups_reissued": len(reissues),
        "reissues_max": max(reissues.values(), default=0),
        "prompts_lost": sum(isinstance(e, BaseException) for e in ends),
        "rejoin_s": round(rejoin_s, 2),
        "orphans": len(orphans),
        "trained_on_fault": len(wrong),
    }


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="smoke test: two faults, short windows")
    parser.add_argument("--part", choices=("envs", "kill", "both"), default="both")
    parser.add_argument("--control", metavar="URL", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.control:
        asyncio.run(control(args.control))
        return
    faults, window_s, down_s = (("500", "hang"), 3.0, 5.0) if args.quick else (ENV_FAULTS, 15.0, 30.0)
    os.environ.setdefault("PYTHONPATH", os.getcwd())  # Ray's workers unpickle EmulatedActor by its name
    result: dict = {}
    with tempfile.TemporaryDirectory() as directory:
        if args.part != "kill":
            envs = asyncio.run(measure_envs(faults, window_s, down_s, Path(directory)))
            rows = envs["faults"].values()
            result |= {
                "other_env_ratio": min(r["other_env_ratio"] for r in rows),
                "valid_while_broken": sum(r["valid_while_broken"] for r in rows),
                "recovery_s": max(r["recovery_s"] for r in rows),
                "trained_on_fault": len(envs.pop("wrong")),
            } | envs
        if args.part != "envs":
            result["kill"] = asyncio.run(measure_kill(Path(directory)))
    for fault, row in result.get("faults", {}).items():
        print(f"{fault:18}", row)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
