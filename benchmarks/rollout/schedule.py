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
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from benchmarks.emulated_engine import EmulatedEngine
from openrlhf_tir.ports import Codec, EnvSession
from openrlhf_tir.rollout.environment_client.client import EnvClient
from openrlhf_tir.rollout.group_runner import Envs
from openrlhf_tir.simulation.virtual_loop import run as run_virtual
from openrlhf_tir.simulation.workload import PROMPT_TOKENS, Workload
from openrlhf_tir.types import GroupKey, Sampling

from ..pipeline.config import ENV, workload_config
from .parts import PROMPT, Actor, SleepingEnvs, script_of

WITHOUT_LIMIT = 1 << 20
"""Tokens that no emulated response has."""
OPENRLHF_MAX_LENGTH = 2_000_000
"""The same for OpenRLHF's executor, which counts a whole trajectory."""


@dataclass
class Trajectory:
    """One response in the making, of the schedules that are written here.

    Attributes:
        engine: Index of its engine.
        key: Its group.
        sample: Its number in the group.
        turn: The model's turns so far.
    """

    engine: int
    key: GroupKey
    sample: int
    turn: int = 0

    @property
    def request_id(self) -> str:
        """The name by which the emulated model knows what it writes in this turn."""
        return f"{self.key}#{self.sample}/{self.turn}"


def ideal_s(workload: Workload) -> float:
    """Return the emulated seconds of our schedule on a virtual clock, where our code takes no time."""

    async def rollout() -> float:
        envs = SleepingEnvs(workload.env_capacity)
        await _run_actors([Actor(workload, workload_config(workload), envs, 1.0) for _ in _engines(workload)], workload)
        return asyncio.get_running_loop().time()

    return run_virtual(rollout())


def serial_virtual_s(workload: Workload) -> float:
    """Return the emulated seconds of the serial loop: an hour, so it runs on the virtual clock as well."""

    async def rollout() -> float:
        await by_rounds(workload, 1.0, [SleepingEnvs(1) for _ in _engines(workload)])
        return asyncio.get_running_loop().time()

    return run_virtual(rollout())


async def timed(work: Awaitable[Any]) -> float:
    """Return the wall-clock seconds of some work."""
    start = time.perf_counter()
    await work
    return time.perf_counter() - start


def clients(workload: Workload, url: str) -> list[EnvClient]:
    """Return a client for each engine's actor, as in a run."""
    cfg = workload_config(workload)
    return [EnvClient.of(cfg.environments, {ENV: url}, owner=f"actor-{engine}") for engine in _engines(workload)]


def _engines(workload: Workload) -> range:
    return range(workload.engine.count)


async def ours(workload: Workload, scale: float, envs: Sequence[Envs], codec: Codec) -> None:
    """Run the rollout with this project's actors, one for each of `envs`."""
    await _run_actors([Actor(workload, workload_config(workload), env, scale, codec) for env in envs], workload)


async def _run_actors(actors: Sequence[Actor], workload: Workload) -> None:
    """Run all groups at once; they go to the actors in turn."""
    await asyncio.gather(*(actors[prompt % len(actors)].run(prompt) for prompt in range(workload.prompts)))


async def by_rounds(workload: Workload, scale: float, envs: Sequence[Envs]) -> None:
    """Run the rollout phase by phase: barrier, or serial where an environment takes one call at a time."""
    await asyncio.gather(*(_rounds_of_engine(workload, scale, envs[engine], engine) for engine in _engines(workload)))


async def _rounds_of_engine(workload: Workload, scale: float, envs: Envs, index: int) -> None:
    """Let all trajectories of an engine generate, then call their tools, and so on; each phase waits for its slowest.

    Args:
        workload: The workload.
        scale: Wall-clock seconds per emulated second.
        envs: The engine's environments.
        index: The engine.
    """
    engine = EmulatedEngine(workload.engine, script_of(workload, scale), time_scale=scale)
    trajectories = [
        Trajectory(index, GroupKey(0, prompt), sample)
        for prompt in range(index, workload.prompts, workload.engine.count)
        for sample in range(workload.samples_per_prompt)
    ]
    contexts = [envs.session(ENV, {}, seed=0) for _ in trajectories]
    sessions = await asyncio.gather(*(context.__aenter__() for context in contexts))
    await asyncio.gather(*(session.reset() for session in sessions))
    lengths = [PROMPT_TOKENS] * len(trajectories)
    for turn in range(workload.tool_calls + 1):
        written = await asyncio.gather(
            *(
                engine.generate(range(length), Sampling(WITHOUT_LIMIT), request_id=trajectory.request_id)
                for trajectory, length in zip(trajectories, lengths, strict=True)
            )
        )
        if turn == workload.tool_calls:
            break
        replies = await asyncio.gather(
            *(
                session.step(_code_of(completion.text), step_id=turn)
                for session, completion in zip(sessions, written, strict=True)
            )
        )
        for i, trajectory in enumerate(trajectories):
            lengths[i] += len(written[i].token_ids) + len(replies[i].observation)
            trajectory.turn += 1
    await asyncio.gather(*(context.__aexit__(None, None, None) for context in contexts))


def _code_of(text: str) -> str:
    """Return the call in a model's turn; empty in its last one, which has none."""
    return text.removeprefix("<code>").removesuffix("</code>")


class OpenRLHFEngine:
    """An emulated engine as OpenRLHF's executor calls one."""

    def __init__(self, engine: EmulatedEngine, trajectory: Trajectory) -> None:
        """Take an engine, and the trajectory whose turns it writes."""
        self._engine = engine
        self._trajectory = trajectory

    async def generate(self, tokens: list[int], params: Any, **_: Any) -> Any:
        """Return a completion in the form of vLLM's."""
        sampling = Sampling(params.max_tokens)
        completion = await self._engine.generate(tokens, sampling, request_id=self._trajectory.request_id)
        ids = completion.token_ids.tolist()
        logprobs = [
            {token: SimpleNamespace(logprob=logprob)}
            for token, logprob in zip(ids, completion.logprobs.tolist(), strict=True)
        ]
        output = SimpleNamespace(
            token_ids=ids, text=completion.text, finish_reason=completion.finish_reason, logprobs=logprobs
        )
        return SimpleNamespace(outputs=[output])


def openrlhf(workload: Workload, scale: float, envs: Sequence[Envs], codec: Codec) -> Callable[[], Awaitable[None]]:
    """Return the rollout by OpenRLHF's executor, to be called. This imports openrlhf, which takes seconds."""
    import torch
    from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

    def tokenizer(text: str, **_: Any) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([codec.encode(text)])}

    class Instance(AgentInstanceBase):
        """The environment of one trajectory, which OpenRLHF hands on as the label."""

        session: EnvSession

        def __init__(self) -> None:
            """The session is opened by `reset`, which knows the trajectory."""

        async def reset(self, states: dict, **_: Any) -> dict:
            engine = states["label"].engine
            self.session = await envs[engine].session(ENV, {}, seed=0).__aenter__()
            await self.session.reset()
            return {"observation": states["observation"]}

        async def step(self, states: dict, **_: Any) -> dict:
            trajectory = states["label"]
            feedback = ""
            done = not states["action_text"]
            if done:
                await self.session.__aexit__(None, None, None)
            else:
                reply = await self.session.step(_code_of(states["action_text"]), step_id=trajectory.turn)
                feedback = f"\n<interpreter>\n{reply.observation}</interpreter>\n\n"
            trajectory.turn += 1
            return {"rewards": torch.tensor(0.0), "environment_feedback": feedback, "done": done}

    executor = MultiTurnAgentExecutor(Instance)

    async def rollout() -> None:
        engines = [EmulatedEngine(workload.engine, script_of(workload, scale), time_scale=scale) for _ in envs]
        runs = []
        for prompt in range(workload.prompts):
            engine = prompt % len(engines)
            for sample in range(workload.samples_per_prompt):
                trajectory = Trajectory(engine, GroupKey(0, prompt), sample)
                params = SimpleNamespace(max_tokens=1, logprobs=1)
                llm = OpenRLHFEngine(engines[engine], trajectory)
                runs.append(executor.execute(PROMPT, trajectory, params, OPENRLHF_MAX_LENGTH, tokenizer, llm))
        await asyncio.gather(*runs)

    return rollout
