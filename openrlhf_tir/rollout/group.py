"""Group: one prompt -> n trajectories, rewarded and judged. They share the prompt, the environment and one deadline.

An infrastructure fault fails a trajectory, never the group: statistics and rewards are over the valid ones. A group with fewer
than `min_valid` of them is failed as a whole. Nothing here retries; the pipeline issues a failed group again.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from ..config import Config
from ..errors import InfraError
from ..types import KEEP, Group, GroupKey, GroupMeta, RewardParts, Task, Trajectory, Verdict
from .engine import Codec, Engine
from .episode import EnvSession, Limits, run_episode
from .turns import make


class Envs(Protocol):
    def session(self, env: str, task: dict, *, seed: int) -> EnvSession:
        """An async context manager that closes the session when left."""


class Rewards(Protocol):
    async def score(self, trajectory: Trajectory, task: Task) -> RewardParts: ...


@dataclass(frozen=True, slots=True)
class EvalMode:
    """Sample for evaluation: own n and temperature, no filters, rewards as in training."""

    n: int
    temperature: float


def seed_for(*parts: object) -> int:
    """A stable 63-bit seed from anything printable; the same on every machine and run."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class GroupRunner:
    """Owned by a rollout actor; runs any number of groups at once."""

    def __init__(self, cfg: Config, engine: Engine, codec: Codec, envs: Envs, rewards: Rewards, judge: Callable[[Group], Verdict], name: str = "") -> None:
        self.cfg, self.engine, self.codec, self.envs, self.rewards, self.judge, self.name = cfg, engine, codec, envs, rewards, judge, name

    async def run(
        self, key: GroupKey, task: Task, mode: EvalMode | None = None, each: Callable[[Trajectory], None] = lambda t: None
    ) -> tuple[GroupMeta, Group]:
        """`each` sees every trajectory that is done in time. Faults of environments, engine or verifier are in the metadata, not raised."""
        start = time.monotonic()
        prompt_ids = self.codec.encode_prompt(task.prompt)
        n = mode.n if mode else self.cfg.rollout.n_samples_per_prompt
        limits = self._limits(len(prompt_ids), mode)
        tasks = [asyncio.create_task(self._one(key, task, prompt_ids, i, limits, each), name=f"episode {key}#{i}") for i in range(n)]
        try:
            _, late = await asyncio.wait(tasks, timeout=self.cfg.rollout.group_deadline_s)
        finally:
            for t in tasks:
                t.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        trajectories = [
            Trajectory(i, np.asarray(prompt_ids, np.int32), failed="deadline") if t in late else t.result() for i, t in enumerate(tasks)
        ]
        group = Group(key, task, trajectories)
        return self._describe(group, mode, time.monotonic() - start), group

    async def _one(
        self, key: GroupKey, task: Task, prompt_ids: Sequence[int], i: int, limits: Limits, each: Callable[[Trajectory], None]
    ) -> Trajectory:
        seed = seed_for(self.cfg.train.seed, key, i)
        per_request = self.cfg.rollout.per_request_seeds
        traj = Trajectory(i, np.asarray(prompt_ids, np.int32))
        try:
            async with self.envs.session(task.env, {"label": task.label, **task.meta}, seed=seed) as env:
                traj = await run_episode(
                    prompt_ids,
                    index=i,
                    engine=self.engine,
                    env=env,
                    codec=self.codec,
                    protocol=make(self.cfg.env),
                    limits=limits,
                    request_id=f"{key}#{i}",
                    seed_of=lambda turn: seed_for(seed, turn) if per_request else None,
                )
            if traj.failed is None:
                traj.reward, correct, parts = await self.rewards.score(traj, task)
                traj.parts = {"correct": float(correct), **parts}
        except InfraError as e:
            traj.failed = e.reason
        each(traj)
        return traj

    def _limits(self, prompt_tokens: int, mode: EvalMode | None) -> Limits:
        c = self.cfg.rollout
        room = min(c.max_new_tokens, self.cfg.data.max_len - prompt_tokens)
        limits = Limits(room, self.cfg.env.output_max_tokens, c.temperature, c.top_p)
        return replace(limits, temperature=mode.temperature, top_p=1.0) if mode else limits

    def _describe(self, group: Group, mode: EvalMode | None, seconds: float) -> GroupMeta:
        valid = group.valid
        versions = [v for t in valid if (v := t.oldest_version) is not None]
        failures = Counter(t.failed for t in group.trajectories if t.failed)
        failed = None
        if len(valid) < (1 if mode else self.cfg.rollout.min_valid):
            failed = failures.most_common(1)[0][0]
        prompt_tokens = len(group.trajectories[0].prompt_ids)
        return GroupMeta(
            key=group.key,
            verdict=KEEP if mode or failed else self.judge(group),
            index=[t.index for t in valid],
            rewards=[t.reward for t in valid],
            correct=[bool(t.parts["correct"]) for t in valid],
            used_code=[bool(t.parts.get("used_code", 0.0)) for t in valid],
            response_tokens=[len(t.token_ids) for t in valid],
            model_tokens=[t.model_tokens for t in valid],
            prompt_tokens=prompt_tokens,
            oldest_version=min(versions, default=-1),
            failures=dict(failures),
            failed=failed,
            stats=_means(valid),
            actor=self.name,
            env=group.task.env,
            seconds=seconds,
        )


def _means(valid: list[Trajectory]) -> dict[str, float]:
    """Mean of every reward part over the valid trajectories, and the mean number of calls."""
    if not valid:
        return {}
    names = sorted({name for t in valid for name in t.parts})
    means = {name: float(np.mean([t.parts.get(name, 0.0) for t in valid])) for name in names}
    return means | {"calls": float(np.mean([len(t.calls) for t in valid])), "truncated": float(np.mean([t.finish_reason == "length" for t in valid]))}
