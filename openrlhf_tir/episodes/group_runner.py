"""Group: one prompt -> n trajectories, rewarded and judged. They share the prompt, the environment and one deadline.

    dispatch n + oversample episodes, in order ──> as each ends: selection settled? hopeless? time over?
        ──> close ──> rewards, verdict

An infrastructure fault of one trajectory fails that one: statistics and rewards are over the valid ones. A fault of
what they share (the engine, the server of their sessions) fails all that shared it, the finished ones too, or their
short answers would be what is left. A group with fewer than `min_valid` valid ones is failed as a whole. Nothing here
retries; the pipeline issues a failed group again. Which trajectories are used, why never the first finished, and which
faults are shared is in choice.py."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ..config import Config
from ..config.environments import one
from ..engines.batcher import Batcher
from ..engines.handover import Handover
from ..errors import SUSPENDED, InfraError
from ..ports import Codec, Engine, EnvSession
from ..suspension import SLICES, awake_time, lateness, suspended_s
from ..types import KEEP, Group, GroupKey, GroupMeta, RewardParts, Task, Trajectory, Verdict
from .agent_broker import Agents
from .agent_file.agent_file import AgentFile
from .chat_format import Chats
from .drift import refuse_drift
from .episode import Limits, run_episode
from .group_meta import describe, failed_as
from .sample_selection import ENGINE_FAULTS, hopeless, length_facts, select, voided
from .turns import make

NO_MODEL_TOKENS = "no_model_tokens"
"""Reason of the verdict on a group in which the model wrote no token: there is nothing to train."""
LONG_PROMPT_CHARS = 100_000
"""A prompt of more characters is tokenised in a thread: on the event loop it would hold up everything for a second."""
WHY_CHARS = 1000
"""Characters of a fault's message that travel with its trajectory."""


class Envs(Protocol):
    def session(self, env: str, task: dict[str, Any], *, seed: int) -> EnvSession:
        """An async context manager that closes the session when left."""


class Rewards(Protocol):
    async def score(self, trajectory: Trajectory, task: Task) -> RewardParts: ...


@dataclass(frozen=True, slots=True)
class EvalMode:
    """For evaluation: own n, temperature, top_p and calls, nobody in reserve, no filters, rewards as in training."""

    n: int
    temperature: float
    top_p: float = 1.0
    max_calls: int | None = None
    """None: env.max_calls, as in training."""
    version: int | None = None
    """The weights that are evaluated: an engine that came up with younger ones meanwhile samples none of it. None:
    whichever there are."""


@dataclass(slots=True)
class _Running:
    """What the trajectories of a group share, and what became of them: `ended[i]` is set when the i-th has."""

    key: GroupKey
    task: Task
    n: int
    prompt_ids: np.ndarray
    limits: Limits
    engine: Engine
    each: Callable[[Trajectory], None]
    mode: EvalMode | None
    ended: list[Trajectory | None]
    finished: list[Trajectory]
    """The trajectories that have ended, in the order in which they did."""
    servers: dict[int, str]
    """Index -> the environment server that holds, or held, its session."""
    start: float
    """Awake time (suspension.py) at which the group began; moved on by what a suspension took."""
    suspended_s: float
    """suspended_s() when the group began."""
    suspended: bool = False
    """True once this process was suspended while the group ran."""

    @property
    def seconds(self) -> float:
        """Seconds since the group began, without those in which this process was suspended."""
        return awake_time() - self.start


def seed_for(*parts: object) -> int:
    """A stable 63-bit seed from anything printable; the same on every machine and run."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class GroupRunner:
    """Owned by a rollout actor; runs any number of groups at once."""

    def __init__(
        self,
        cfg: Config,
        engine: Engine,
        codec: Codec,
        envs: Envs,
        rewards: Rewards,
        judge: Callable[[Group], Verdict | Awaitable[Verdict]],
        name: str = "",
        agents: Agents | AgentFile | None = None,
        chats: Mapping[str, Chats | None] | None = None,
        handover: Handover | None = None,
    ) -> None:
        """`agents`: external programs, or a file in OpenRLHF's form, that write the responses in place of our turn loop
        and environment. `chats`: per environment with a messages protocol. `handover`: in a run with a fast lane."""
        self.cfg, self.engine, self.codec, self.envs, self.rewards = cfg, engine, codec, envs, rewards
        self.judge, self.name = judge, name
        self.agents, self.chats, self.handover = agents, chats or {}, handover
        self.environments = cfg.environments
        self._aside: Codec | None = None
        """A copy of the codec for long prompts; made when one comes."""
        self._aside_free = asyncio.Lock()

    async def _encoded(self, prompt: str) -> list[int]:
        """Return a prompt's tokens. A long one is tokenised in a thread, by a copy of the codec (a tokenizer's settings
        are changed by each call): one of megabytes takes half a minute, in which nothing else would be answered."""
        if len(prompt) <= LONG_PROMPT_CHARS:
            return self.codec.encode_prompt(prompt)
        async with self._aside_free:
            if self._aside is None:
                self._aside = await asyncio.to_thread(copy.deepcopy, self.codec)
            return await asyncio.to_thread(self._aside.encode_prompt, prompt)

    async def run(
        self,
        key: GroupKey,
        task: Task,
        mode: EvalMode | None = None,
        each: Callable[[Trajectory], None] = lambda t: None,
    ) -> tuple[GroupMeta, Group]:
        """`each` sees every trajectory that is done in time. Faults of environments, engine or verifier are in the
        metadata, not raised."""
        r = self.cfg.rollout
        chats = self._chats_of(task)
        task = chats.task(task) if chats else task
        n, extra = (mode.n, 0) if mode else (r.n_samples_per_prompt, r.oversample)
        prompt_ids = np.asarray(await self._encoded(task.prompt), np.int32)
        engine = self.engine.lane(task.env, key) if isinstance(self.engine, Batcher) else self.engine
        if self.handover and mode is None:
            engine = self.handover.around(engine)
        g = _Running(
            key,
            task,
            n,
            prompt_ids,
            self._limits(task.env, len(prompt_ids), mode),
            engine,
            each,
            mode,
            [None] * (n + extra),
            [],
            {},
            awake_time(),
            suspended_s(),
        )
        given_up = await self._collect(g)
        seconds = g.seconds
        g.suspended |= suspended_s() > g.suspended_s
        late = "early_stop" if given_up else "deadline" if seconds >= r.group_deadline_s else "straggler"
        for i, reason in voided(g.ended, [t.index for t in g.finished], g.servers).items():
            g.ended[i] = _without_reward(g.ended[i] or Trajectory(i, prompt_ids), reason)
        if not select(g.ended, n).settled:
            g.ended = [t or Trajectory(i, prompt_ids, failed=late) for i, t in enumerate(g.ended)]
        group = Group(key, task, select(g.ended, n).members)
        failed = failed_as(group, 1 if mode else r.min_valid, user_code=mode is None)
        if g.suspended and mode is None and any(_may_be_late(t) for t in group.trajectories):
            # The deadlines of others (calls, sessions, the code's own time limit) went on while nobody could work. What
            # they left of the group would be its short responses.
            failed = SUSPENDED
        verdict, fault = (KEEP, None) if mode or failed else await self._judged(group)
        if verdict.keep and failed is None and mode is None and not any(t.model_tokens for t in group.valid):
            # Nothing was sampled: a prompt that fills the context, an agent that never asked the model. There is no
            # gradient, and no policy version that the staleness bound could look at.
            verdict = Verdict(False, NO_MODEL_TOKENS)
        failed = fault.reason if fault else failed
        meta = describe(
            group, prompt_tokens=len(prompt_ids), verdict=verdict, failed=failed, actor=self.name, seconds=seconds
        )
        if fault:
            meta.why[fault.reason] = str(fault)[:WHY_CHARS]
        if extra:
            meta.stats |= length_facts(group.trajectories, g.finished, n)
        return meta, group

    async def _judged(self, group: Group) -> tuple[Verdict, InfraError | None]:
        """Verdict, and the fault by which the group failed after all: a group reward or filter that is broken says
        nothing about the group."""
        try:
            verdict = self.judge(group)
            return (await verdict if inspect.isawaitable(verdict) else verdict), None
        except InfraError as e:
            return KEEP, e

    async def _collect(self, g: _Running) -> bool:
        """Run the episodes until the group can be closed; others are given up. True when a filter surely drops it."""
        ends: asyncio.Queue[asyncio.Task[Trajectory]] = asyncio.Queue()
        tasks = {asyncio.create_task(self._one(g, i), name=f"episode {g.key}#{i}"): i for i in range(len(g.ended))}
        for task in tasks:
            task.add_done_callback(ends.put_nowait)
        try:
            for _ in tasks:
                ended = await self._next_end(g, ends)
                if ended is None:
                    return False
                trajectory = g.ended[tasks[ended]] = ended.result()
                g.finished.append(trajectory)
                if trajectory.failed in ENGINE_FAULTS:
                    return False
                if self._is_hopeless(g):
                    return True
                if len(g.ended) > g.n and select(g.ended, g.n).settled:
                    return False
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return False

    async def _next_end(
        self, g: _Running, ends: asyncio.Queue[asyncio.Task[Trajectory]]
    ) -> asyncio.Task[Trajectory] | None:
        """Wait for the next trajectory that ends; None if the group's time is over before.

        In parts: one that lasts much longer than it should shows that this process was suspended meanwhile, which
        extends the group's deadline.
        """
        while (patience_s := self._patience(g)) > 0:
            part_s = min(patience_s, self.cfg.rollout.group_deadline_s / SLICES)
            began = awake_time()
            try:
                async with asyncio.timeout(part_s):
                    return await ends.get()
            except TimeoutError:
                continue
            finally:
                late_s = lateness(began, part_s)
                g.start += late_s
                g.suspended |= late_s > 0
        return None

    def _patience(self, g: _Running) -> float:
        """For how many seconds to wait for the next trajectory. Evaluation waits for everybody until the deadline."""
        r, limit = self.cfg.rollout, self.cfg.rollout.group_deadline_s
        if g.mode is None and r.straggler_s is not None and sum(t.failed is None for t in g.finished) >= r.min_valid:
            limit = min(limit, r.straggler_s)
        return limit - g.seconds

    def _is_hopeless(self, g: _Running) -> bool:
        r = self.cfg.rollout
        return (
            r.early_stop
            and g.mode is None
            and hopeless(g.ended, g.n, r.min_valid, one(self.environments, g.task.env).filter.accuracy_range)
        )

    async def _one(self, g: _Running, i: int) -> Trajectory:
        traj = Trajectory(i, g.prompt_ids)
        try:
            with self.handover.writing(f"{g.key}#{i}") if self.handover and g.mode is None else nullcontext():
                traj = await self._written(g, i)
            if traj.failed is None and traj.reward is None:
                traj.reward, correct, parts = await self.rewards.score(traj, g.task)
                traj.parts |= {"correct": float(correct), **parts}
        except InfraError as e:
            traj.failed, traj.why = e.reason, str(e)[:WHY_CHARS]
            traj.traceback = getattr(e, "traceback", "")
        g.each(traj)
        return traj

    async def _written(self, g: _Running, i: int) -> Trajectory:
        if self.agents is None:
            return await self._turns(g, i)
        if isinstance(self.agents, AgentFile):
            return await self.agents.run(
                g.task,
                i,
                g.prompt_ids.tolist(),
                engine=g.engine,
                temperature=g.limits.temperature,
                request_id=f"{g.key}#{i}",
                seed_of=self._seeds(self._seed(g, i)),
                held_by=lambda process: g.servers.update({i: process}),
            )
        return await self.agents.run(g.task, i, g.limits.temperature)

    def _seed(self, g: _Running, i: int) -> int:
        """Without the attempt: issued again after a crash, it samples the same."""
        return seed_for(self.cfg.train.seed, g.key.epoch, g.key.prompt, i)

    def _seeds(self, seed: int) -> Callable[[int], int | None]:
        """Turn -> the seed of its request, if requests have one."""
        per_request = self.cfg.rollout.per_request_seeds or self.cfg.train.full_determinism_enable
        return lambda turn: seed_for(seed, turn) if per_request else None

    async def _turns(self, g: _Running, i: int) -> Trajectory:
        """Our own loop: the engine and the environment in turns."""
        seed = self._seed(g, i)
        env_cfg = one(self.environments, g.task.env).env
        if g.mode is not None and g.mode.max_calls is not None:
            env_cfg = env_cfg.model_copy(update={"max_calls": g.mode.max_calls})
        protocol = make(env_cfg)
        columns = {"extra": dict(g.task.extra)} if g.task.extra else {}
        task = {**columns, **getattr(protocol, "env_task", {}), "label": g.task.label, **g.task.meta}
        async with self.envs.session(g.task.env, task, seed=seed) as env:
            try:
                chats = self._chats_of(g.task)
                traj = await run_episode(
                    g.prompt_ids,
                    index=i,
                    engine=g.engine,
                    env=env,
                    codec=self.codec,
                    protocol=protocol,
                    limits=g.limits,
                    request_id=f"{g.key}#{i}",
                    seed_of=self._seeds(seed),
                    show=chats.show(protocol, g.task) if chats else None,
                )
            finally:  # of one that is given up as well
                if env.server is not None:
                    g.servers[i] = env.server
        if traj.failed is None and seed_for("drift", g.key, i) < self.cfg.rollout.drift_check * 2**63:
            refuse_drift(traj, self.codec, rendered=chats is not None)
        return traj

    def _chats_of(self, task: Task) -> Chats | None:
        return one(self.chats, task.env) if self.chats else None

    def _limits(self, env: str, prompt_tokens: int, mode: EvalMode | None) -> Limits:
        c = self.cfg.rollout
        room = min(c.max_new_tokens, self.cfg.data.max_len - prompt_tokens)
        limits = Limits(
            room,
            one(self.environments, env).env.output_max_tokens,
            c.temperature,
            c.top_p,
            self.cfg.data.max_len,
            c.top_k,
            c.min_p,
        )
        return replace(limits, temperature=mode.temperature, top_p=mode.top_p, top_k=0, min_p=0.0) if mode else limits


def _may_be_late(trajectory: Trajectory) -> bool:
    """Return True if a deadline may have ended this trajectory, or code that it ran, because a suspension took time."""
    if trajectory.failed is not None:
        return True
    return any(call.signals.get("error_type") == "time_limit" for call in trajectory.calls)


def _without_reward(trajectory: Trajectory, reason: str) -> Trajectory:
    """The trajectory as one that `reason` costs, unless it failed by itself. A copy: whoever followed the group has
    seen it end well."""
    return trajectory if trajectory.failed else replace(trajectory, failed=reason, reward=None)
