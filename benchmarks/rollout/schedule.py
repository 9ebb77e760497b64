"""One 128 x 16 rollout under five schedules: ours, its ideal, and what others do. Same engines, same environments, same
draws.

    ideal        ours on a virtual clock, where our code takes no time: the critical path of the engine model's own
                 schedule
    ours         GroupRunner, queue and environment client, on the wall clock
    openrlhf     OpenRLHF 0.11.2's own MultiTurnAgentExecutor, one coroutine per trajectory, its tools through our
                 environment client
    barrier      the reference's: all trajectories of an engine generate, all call their tools, and so on; each phase
                 waits for its slowest
    serial       the synchronous loop: all trajectories of an engine generate, then their tools run one after the other

The last two are written here, with no work between phases, which flatters them. Groups go to the engines in turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from openrlhf_tir.ports import Codec, EnvSession
from openrlhf_tir.rollout.environment_client.client import EnvClient
from openrlhf_tir.rollout.group_runner import Envs
from openrlhf_tir.simulation.emulated_engine import EmulatedEngine
from openrlhf_tir.simulation.virtual_loop import run as run_virtual
from openrlhf_tir.simulation.workload import PROMPT_TOKENS, Workload
from openrlhf_tir.types import GroupKey, Sampling

from ..pipeline.config import ENV, PATIENCE_S, workload_config
from .parts import PROMPT, Actor, SleepingEnvs, script_of

LIMIT = Sampling(1 << 20)


def ideal_s(w: Workload) -> float:
    """Emulated seconds."""

    async def main() -> float:
        envs = SleepingEnvs(w.env_capacity)
        actors = [Actor(w, workload_config(w), envs, 1.0) for _ in range(w.engine.count)]
        await asyncio.gather(*(actors[p % len(actors)].run(p) for p in range(w.prompts)))
        return asyncio.get_running_loop().time()

    return run_virtual(main())


def serial_virtual_s(w: Workload) -> float:
    """The serial loop takes an hour of emulated time: it runs on the virtual clock, where its code takes no time."""

    async def main() -> float:
        await by_rounds(w, 1.0, [SleepingEnvs(1) for _ in range(w.engine.count)])
        return asyncio.get_running_loop().time()

    return run_virtual(main())


async def timed(work: Awaitable[Any]) -> float:
    """Wall-clock seconds."""
    start = time.perf_counter()
    await work
    return time.perf_counter() - start


def clients(w: Workload, url: str) -> list[EnvClient]:
    """One per actor, as in a run."""
    cfg = workload_config(w)
    made = [EnvClient.of(cfg.env, {ENV: url}, owner=f"actor-{i}") for i in range(w.engine.count)]
    for client in made:
        client.capacity_timeout_s = PATIENCE_S
    return made


async def ours(w: Workload, scale: float, envs: Sequence[Envs], codec: Codec) -> None:
    actors = [Actor(w, workload_config(w), e, scale, codec) for e in envs]
    await asyncio.gather(*(actors[p % len(actors)].run(p) for p in range(w.prompts)))


async def by_rounds(w: Workload, scale: float, envs: Sequence[Envs]) -> None:
    """Barrier; serial where an environment takes one call at a time."""

    async def engine_share(index: int) -> None:
        engine = EmulatedEngine(w.engine, script_of(w, scale), time_scale=scale)
        mine = [
            (GroupKey(0, p), i) for p in range(index, w.prompts, w.engine.count) for i in range(w.samples_per_prompt)
        ]
        sessions = {one: envs[index].session(ENV, {}, seed=0) for one in mine}
        opened = dict(zip(mine, await asyncio.gather(*(s.__aenter__() for s in sessions.values())), strict=True))
        await asyncio.gather(*(s.reset() for s in opened.values()))
        length = dict.fromkeys(mine, PROMPT_TOKENS)
        for turn in range(w.tool_calls + 1):
            written = await asyncio.gather(
                *(engine.generate(range(length[k, i]), LIMIT, request_id=f"{k}#{i}/{turn}") for k, i in mine)
            )
            if turn < w.tool_calls:
                actions = [c.text.removeprefix("<code>").removesuffix("</code>") for c in written]
                replies = await asyncio.gather(
                    *(opened[one].step(a, step_id=turn) for one, a in zip(mine, actions, strict=True))
                )
                for one, c, reply in zip(mine, written, replies, strict=True):
                    length[one] += len(c.token_ids) + len(reply.observation)
        await asyncio.gather(*(s.__aexit__(None, None, None) for s in sessions.values()))

    await asyncio.gather(*(engine_share(i) for i in range(w.engine.count)))


def openrlhf(w: Workload, scale: float, envs: Sequence[Envs], codec: Codec) -> Callable[[], Awaitable[None]]:
    """Imports openrlhf, which takes seconds: call the result for the run."""
    from types import SimpleNamespace

    import torch
    from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

    def tokenizer(text: str, **_: Any) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([codec.encode(text)])}

    class Instance(AgentInstanceBase):
        """Bound to one trajectory by its label: [engine, group, sample, turn]."""

        session: EnvSession

        def __init__(self) -> None:
            """The session is opened by `reset`."""

        async def reset(self, states: dict, **_: Any) -> dict:
            engine = states["label"][0]
            self.session = await envs[engine].session(ENV, {}, seed=0).__aenter__()
            await self.session.reset()
            return {"observation": states["observation"]}

        async def step(self, states: dict, **_: Any) -> dict:
            states["label"][3] += 1
            text, done = "", not states["action_text"]
            if done:
                await self.session.__aexit__(None, None, None)
            else:
                action = states["action_text"].removeprefix("<code>").removesuffix("</code>")
                reply = await self.session.step(action, step_id=states["label"][3] - 1)
                text = f"\n<interpreter>\n{reply.observation}</interpreter>\n\n"
            return {"rewards": torch.tensor(0.0), "environment_feedback": text, "done": done}

    class Llm:
        def __init__(self, engine: EmulatedEngine, label: list) -> None:
            self.engine, self.label = engine, label

        async def generate(self, tokens: list[int], params: Any, **_: Any) -> Any:
            _, key, sample, turn = self.label
            c = await self.engine.generate(tokens, Sampling(params.max_tokens), request_id=f"{key}#{sample}/{turn}")
            ids = c.token_ids.tolist()
            logprobs = [{t: SimpleNamespace(logprob=p)} for t, p in zip(ids, c.logprobs.tolist(), strict=True)]
            return SimpleNamespace(
                outputs=[SimpleNamespace(token_ids=ids, text=c.text, finish_reason=c.finish_reason, logprobs=logprobs)]
            )

    executor = MultiTurnAgentExecutor(Instance)

    async def rollout() -> None:
        engines = [EmulatedEngine(w.engine, script_of(w, scale), time_scale=scale) for _ in envs]

        async def one(p: int, i: int) -> None:
            at = p % len(engines)
            label = [at, GroupKey(0, p), i, 0]
            params = SimpleNamespace(max_tokens=1, logprobs=1)
            await executor.execute(PROMPT, label, params, 2_000_000, tokenizer, Llm(engines[at], label))

        await asyncio.gather(*(one(p, i) for p in range(w.prompts) for i in range(w.samples_per_prompt)))

    return rollout
