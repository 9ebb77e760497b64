"""python -m benchmarks.envs.swe_overlap: what it is worth that sessions start, agents work and patches are judged at
the same time. Durations are emulated.

    stages      all sessions start, then all agents work, then all patches are judged
    slots       64 slots, each takes one trajectory after another through its three stages
    overlapped  the server's way: whatever has started is worked on, whatever is finished is judged
    swe_overlap_ratio = stages / overlapped

Sessions, admission and stages are the server's own, without HTTP and without sandboxes: starting, commands and tests
are sleeps, at a sixtieth of their length. The batch, the turn limit and the workers are those of SkyRL-v0's 7B run,
first stage: 16 prompts of 16 samples, 15 turns, 64 agents, and as many workers for the two other stages. How long
things take is not told there; assumed are (means of log-normal draws, the same in all three ways)

    start 45 s (a container that is pulled and answers)     turn 6 s + command 2 s, 5 to 15 of them
    tests 45 s, asked for every 30 s as there

The last line is JSON.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from benchmarks.command import command_parser
from env_servers.serving import EnvService, ServingConfig
from env_servers.swe.env import Shared, SweEnv
from env_servers.swe.grade import Report
from env_servers.swe.session import ToolResult
from env_servers.swe.stages import Stages
from env_servers.swe.task import SweTask
from openrlhf_tir.protocol import ResetRequest, StepRequest

PROMPTS, SAMPLES, MOST_TURNS, WORKERS = 16, 16, 15, 64
START_S, TURN_S, COMMAND_S, TESTS_S, POLL_S, SPREAD = 45.0, 6.0, 2.0, 45.0, 30.0, 0.5
DEADLINE_S = 600.0
COMMAND, FINISH = (
    json.dumps([{"name": name, "arguments": given}])
    for name, given in (("execute_bash", {"command": "true"}), ("finish", {}))
)


@dataclass(frozen=True, slots=True)
class Emulated:
    """One trajectory's durations, in seconds."""

    name: str
    start: float
    turns: tuple[float, ...]
    commands: tuple[float, ...]
    tests: float


def trajectories(prompts: int, seed: int) -> list[Emulated]:
    rng = random.Random(seed)

    def around(mean: float) -> float:
        return rng.lognormvariate(math.log(mean) - SPREAD**2 / 2, SPREAD)

    made = []
    for i in range(prompts * SAMPLES):
        turns = rng.randint(5, MOST_TURNS)
        tests = POLL_S * math.ceil(around(TESTS_S) / POLL_S)
        made.append(
            Emulated(
                f"r{i}",
                around(START_S),
                tuple(around(TURN_S) for _ in range(turns)),
                tuple(around(COMMAND_S) for _ in range(turns - 1)),
                tests,
            )
        )
    return made


class EmulatedBackend:
    """Sessions that do nothing for as long as real ones would."""

    def __init__(self, given: Iterable[Emulated], pause: Callable[[float], Awaitable[None]]) -> None:
        self.given, self.pause = {t.name: t for t in given}, pause
        self.gauges: dict[str, Callable[[], float]] = {}

    async def begin(self, task: SweTask) -> EmulatedWork:
        mine = self.given[task.repo]
        await self.pause(mine.start)
        return EmulatedWork(mine, self.pause)


class EmulatedWork:
    def __init__(self, mine: Emulated, pause: Callable[[float], Awaitable[None]]) -> None:
        self._mine, self._pause, self._commands = mine, pause, iter(mine.commands)

    async def bash(self, command: str, is_input: bool, seconds: float) -> ToolResult:
        await self._pause(next(self._commands))
        return ToolResult("done")

    async def edit(self, command: str, path: str, arguments: dict) -> ToolResult:
        raise NotImplementedError

    async def patch(self) -> bytes:
        return b"patch"

    async def judge(self, patch: bytes) -> Report:
        await self._pause(self._mine.tests)
        return Report(True, "resolved")

    async def close(self) -> None:
        pass


class Run:
    """One way through the same trajectories, on a server of its own."""

    def __init__(self, given: list[Emulated], scale: float) -> None:
        self.given, self.scale = given, scale
        stages = Stages(start=WORKERS, evaluate=WORKERS, max_waiting_starts=len(given))
        shared = Shared(EmulatedBackend(given, self.pause), stages, DEADLINE_S, MOST_TURNS, DEADLINE_S)
        # As many steps at once as there are agents: commands are sleeps, and take nothing of a core.
        self.service = EnvService(
            lambda: SweEnv(shared), ServingConfig("swe", "calls", workers=WORKERS, max_queue=len(given)), stages.gauges
        )
        self.agents = asyncio.Semaphore(WORKERS)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self.scale)

    async def start(self, t: Emulated) -> None:
        await self.service.sessions.open(ResetRequest(session_id=t.name, task={"repo": t.name}))

    async def agent(self, t: Emulated) -> None:
        async with self.agents:
            for i, turn in enumerate(t.turns):
                await self.pause(turn)
                if i < len(t.commands):
                    await self.step(t, i, COMMAND)

    async def judge(self, t: Emulated) -> None:
        if await self.step(t, len(t.commands), FINISH) != 1.0:
            raise RuntimeError(f"{t.name} was not judged")

    async def step(self, t: Emulated, step_id: int, action: str) -> float | None:
        reply = await self.service.step(
            StepRequest(session_id=t.name, step_id=step_id, action=action, deadline_s=DEADLINE_S)
        )
        if reply.outcome != "ok":
            raise RuntimeError(f"{t.name}, step {step_id}: {reply}")
        return reply.reward

    async def stages(self) -> None:
        for stage in (self.start, self.agent, self.judge):
            await asyncio.gather(*map(stage, self.given))

    async def slots(self) -> None:
        free = asyncio.Semaphore(WORKERS)

        async def one(t: Emulated) -> None:
            async with free:
                await self.start(t)
                await self.agent(t)
                await self.judge(t)

        await asyncio.gather(*map(one, self.given))

    async def overlapped(self) -> None:
        async def one(t: Emulated) -> None:
            await self.start(t)
            await self.agent(t)
            await self.judge(t)

        await asyncio.gather(*map(one, self.given))


async def measure(prompts: int, scale: float) -> dict[str, float]:
    """Emulated seconds of each way, and the ratios."""
    took = {}
    for way in ("stages", "slots", "overlapped"):
        run = Run(trajectories(prompts, seed=0), scale)
        began = time.perf_counter()
        await getattr(run, way)()
        took[way] = (time.perf_counter() - began) / scale
        await run.service.sessions.close_all()
        print(f"swe, {len(run.given)} trajectories, {way:10s} {took[way]:6.0f} emulated s", flush=True)
    facts = {f"swe_emulated_{way}_s": round(seconds) for way, seconds in took.items()}
    ratios = {
        "swe_overlap_ratio": took["stages"] / took["overlapped"],
        "swe_overlap_over_slots": took["slots"] / took["overlapped"],
    }
    return facts | {name: round(ratio, 2) for name, ratio in ratios.items()}


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="a two-hundredth of the durations: some ten seconds")
    args = parser.parse_args()
    print(json.dumps(asyncio.run(measure(PROMPTS, 1 / (200 if args.quick else 60)))))


if __name__ == "__main__":
    main()
