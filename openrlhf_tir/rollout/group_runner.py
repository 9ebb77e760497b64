"""Run one prompt as a group: n trajectories, each in an environment session of its own, with one deadline for all.

    dispatch n episodes --> as each ends: is a fault one of all? will the group be filtered?
        is its time over?  --> cancel the others --> rewards, verdict, metadata

An infrastructure fault of one trajectory fails that one; rewards and statistics are over the valid ones. A fault of
what they share (the engine, the server of their sessions) fails all that shared it, the finished ones too, because only
their short answers would be left. A group with fewer than `min_valid` valid trajectories fails as a whole. Nothing is
retried here: the pipeline issues a failed group again. Which trajectories are used, and which faults are shared, is
decided in sample_selection.py.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from ..config import Config
from ..config.environments import entry_of
from ..errors import SUSPENDED, InfraError
from ..ports import Codec, Engine, EnvSession
from ..types import KEEP, Group, GroupKey, GroupMeta, RewardParts, Task, Trajectory, Verdict
from ..waiting.suspension import SLICES, awake_time, lateness, suspended_s
from .agent_broker import AgentBroker
from .drift import refuse_drift
from .episode import Limits, run_episode
from .group_meta import describe
from .protocols import make
from .protocols.agent_file.agent_file import AgentFile
from .protocols.chat_format import ChatFormat
from .request_queue import RequestQueue
from .sample_selection import DEADLINE, EARLY_STOP, ENGINE_FAULTS, failure_of, invalidated, will_be_filtered
from .seeds import seed_for
from .sequence_migration import SequenceMigration

NO_MODEL_TOKENS = "no_model_tokens"
"""Reason of the verdict on a group in which the model wrote no token: there is nothing to train."""
LONG_PROMPT_CHARS = 100_000
"""A prompt with more characters is tokenised in a thread: on the event loop it would block everything for a second."""
WHY_CHARS = 1000
"""Characters of a fault's message that travel with its trajectory."""


class Envs(Protocol):
    """The environments of a run."""

    def session(self, env: str, task: dict[str, Any], *, seed: int) -> EnvSession:
        """Return a session as an async context manager, which closes it on exit.

        Args:
            env: Name of the environment.
            task: What the environment is told of the row.
            seed: Seed of the session.

        Raises:
            ConfigError: The environment has no URL.
        """


class Rewards(Protocol):
    """The rewards of a run."""

    async def score(self, trajectory: Trajectory, task: Task) -> RewardParts:
        """Return the reward of a finished trajectory.

        Raises:
            InfraError: A check failed (VerifierError), the reward itself (RewardError) or its model (RewardModelError).
                It is never a reward of 0.
        """


@dataclass(frozen=True, slots=True)
class EvalMode:
    """How a group is run for an evaluation. It is not judged: no filters, and each trajectory keeps its own reward.

    Attributes:
        n: Number of samples.
        temperature: Softmax temperature; 0 is greedy.
        top_p: Nucleus sampling.
        max_calls: Largest number of calls; None for env.max_calls, as in training.
        version: The policy version that is evaluated: an engine with younger weights samples none of it. None: any.
    """

    n: int
    temperature: float
    top_p: float = 1.0
    max_calls: int | None = None
    version: int | None = None


@dataclass(slots=True)
class _RunningGroup:
    """What the trajectories of a group share, and which of them have ended.

    Attributes:
        key: Identity of the attempt.
        task: The task.
        prompt_ids: [P] tokens of the prompt.
        limits: Limits of its episodes.
        engine: What samples its segments.
        on_trajectory: Called with every trajectory that ended in time.
        evaluation: Set if the group is run for an evaluation.
        by_index: Trajectory by index; None while it runs.
        order: Indices in the order in which their trajectories ended.
        servers: Index -> environment server that holds, or held, its session.
        start: Awake time (suspension.py) at which the group began, moved on by the duration of suspensions.
        suspended_at_start_s: Value of `suspended_s()` when the group began.
        was_suspended: True once this process was suspended while the group ran.
    """

    key: GroupKey
    task: Task
    prompt_ids: np.ndarray
    limits: Limits
    engine: Engine
    on_trajectory: Callable[[Trajectory], None]
    evaluation: EvalMode | None
    by_index: list[Trajectory | None]
    order: list[int] = field(default_factory=list)
    servers: dict[int, str] = field(default_factory=dict)
    start: float = field(default_factory=awake_time)
    suspended_at_start_s: float = field(default_factory=suspended_s)
    was_suspended: bool = False

    @property
    def seconds(self) -> float:
        """Seconds since the group began, without those in which this process was suspended."""
        return awake_time() - self.start


class GroupRunner:
    """Runs any number of groups at once. Owned by a rollout actor."""

    def __init__(
        self,
        cfg: Config,
        engine: Engine,
        codec: Codec,
        envs: Envs,
        rewards: Rewards,
        judge: Callable[[Group], Verdict | Awaitable[Verdict]],
        name: str = "",
        agents: AgentBroker | AgentFile | None = None,
        chat_formats: Mapping[str, ChatFormat | None] | None = None,
        migration: SequenceMigration | None = None,
    ) -> None:
        """Create a runner.

        Args:
            cfg: The run's configuration.
            engine: What samples; in a `RequestQueue` groups take turns.
            codec: The tokenizer.
            envs: Opens environment sessions.
            rewards: Scores trajectories.
            judge: Sets group rewards and masks, and returns the verdict on a group; a `GroupJudge`.
            name: Name of the rollout actor.
            agents: External programs, or an agent file in OpenRLHF's form, that write the responses in place of the
                turn loop and the environment.
            chat_formats: By environment; None for one without a messages protocol.
            migration: Moves running responses between engines, in a run with pipeline.fast_lane.
        """
        self.cfg = cfg
        self.engine = engine
        self.codec = codec
        self.envs = envs
        self.rewards = rewards
        self.judge = judge
        self.name = name
        self.agents = agents
        self.chat_formats = chat_formats or {}
        self.migration = migration
        self.environments = cfg.environments
        self._thread_codec: Codec | None = None
        """A copy of the codec for long prompts; created with the first one."""
        self._thread_codec_lock = asyncio.Lock()

    async def run(
        self,
        key: GroupKey,
        task: Task,
        evaluation: EvalMode | None = None,
        on_trajectory: Callable[[Trajectory], None] = lambda trajectory: None,
    ) -> tuple[GroupMeta, Group]:
        """Run one group and return its metadata and payload.

        Faults of environments, engine, verifier and user code are in the metadata; they are not raised.

        Args:
            key: Identity of the attempt.
            task: The task.
            evaluation: Set if the group is run for an evaluation.
            on_trajectory: Called with every trajectory that ended in time.

        Raises:
            Exception: A bug of ours, that is anything but an InfraError.
        """
        chat_format = self._chat_format(task)
        if chat_format:
            task = chat_format.task(task)
        running = await self._begin(key, task, evaluation, on_trajectory)
        why_closed = await self._collect(running)
        seconds = running.seconds
        if suspended_s() > running.suspended_at_start_s:
            running.was_suspended = True
        self._mark_failures(running, why_closed)
        group = Group(key, task, [trajectory for trajectory in running.by_index if trajectory is not None])
        failure = self._failure_of(running, group)
        verdict = KEEP
        why: dict[str, str] = {}
        if evaluation is None and failure is None:
            try:
                verdict = await self._judge(group)
            except InfraError as e:  # A group reward or filter failed, which says nothing about the group.
                failure = e.reason
                why = {e.reason: str(e)[:WHY_CHARS]}
        meta = describe(
            group,
            prompt_tokens=len(running.prompt_ids),
            verdict=verdict,
            failed=failure,
            actor=self.name,
            seconds=seconds,
        )
        return replace(meta, why={**meta.why, **why}), group

    async def _begin(
        self,
        key: GroupKey,
        task: Task,
        evaluation: EvalMode | None,
        on_trajectory: Callable[[Trajectory], None],
    ) -> _RunningGroup:
        n = self.cfg.rollout.n_samples_per_prompt if evaluation is None else evaluation.n
        prompt_ids = np.asarray(await self._encode_prompt(task.prompt), np.int32)
        engine = self.engine.of_group(task.env, key) if isinstance(self.engine, RequestQueue) else self.engine
        if self.migration and evaluation is None:
            engine = self.migration.around(engine)
        return _RunningGroup(
            key=key,
            task=task,
            prompt_ids=prompt_ids,
            limits=self._limits(task.env, len(prompt_ids), evaluation),
            engine=engine,
            on_trajectory=on_trajectory,
            evaluation=evaluation,
            by_index=[None] * n,
        )

    async def _encode_prompt(self, prompt: str) -> list[int]:
        """Return a prompt's tokens.

        A prompt of megabytes takes half a minute, in which nothing else would be answered, so a long prompt is
        tokenised in a thread. The thread uses a copy of the codec, because a call changes settings of the tokenizer.
        """
        if len(prompt) <= LONG_PROMPT_CHARS:
            return self.codec.encode_prompt(prompt)
        async with self._thread_codec_lock:
            if self._thread_codec is None:
                self._thread_codec = await asyncio.to_thread(copy.deepcopy, self.codec)
            return await asyncio.to_thread(self._thread_codec.encode_prompt, prompt)

    def _mark_failures(self, running: _RunningGroup, why_closed: str | None) -> None:
        """Fail what a shared fault cost, finished or not, and for `why_closed` the trajectories that were cancelled."""
        for index, reason in invalidated(running.by_index, running.order, running.servers).items():
            affected = running.by_index[index] or Trajectory(index, running.prompt_ids)
            running.by_index[index] = _without_reward(affected, reason)
        for index, trajectory in enumerate(running.by_index):
            if trajectory is None:
                assert why_closed is not None, "a group without a reason to close it has ended"
                running.by_index[index] = Trajectory(index, running.prompt_ids, failed=why_closed)

    def _failure_of(self, running: _RunningGroup, group: Group) -> str | None:
        """Return why the group as a whole cannot be used; None if it can be."""
        if running.evaluation is not None:
            return failure_of(group, 1, user_code_fails_group=False)
        if running.was_suspended and any(_may_be_late(trajectory) for trajectory in group.trajectories):
            # Deadlines of others (calls, sessions, the time limit of code) went on while this process was suspended.
            # What they left of the group would be its short responses.
            return SUSPENDED
        return failure_of(group, self.cfg.rollout.min_valid)

    async def _judge(self, group: Group) -> Verdict:
        """Set group rewards and masks and return the verdict.

        Raises:
            InfraError: A group reward or a filter failed.
        """
        judged = self.judge(group)
        verdict = await judged if inspect.isawaitable(judged) else judged
        if verdict.keep and not any(trajectory.model_tokens for trajectory in group.valid):
            # Nothing was sampled: the prompt fills the context, or an agent never asked the model. There is no
            # gradient, and no policy version that the staleness bound could use.
            return Verdict(False, NO_MODEL_TOKENS)
        return verdict

    async def _collect(self, running: _RunningGroup) -> str | None:
        """Run the episodes until the group can be closed, and cancel the others.

        Returns:
            Why the others are cancelled: DEADLINE; EARLY_STOP, if the accuracy filter will drop the group; or the
            engine's fault, which they share. None if all have ended.
        """
        done: asyncio.Queue[asyncio.Task[Trajectory]] = asyncio.Queue()
        index_of = {
            asyncio.create_task(self._trajectory(running, index), name=f"episode {running.key}#{index}"): index
            for index in range(len(running.by_index))
        }
        for episode in index_of:
            episode.add_done_callback(done.put_nowait)
        try:
            for _ in index_of:
                done_episode = await self._next_done(running, done)
                if done_episode is None:
                    return DEADLINE
                trajectory = done_episode.result()
                running.by_index[index_of[done_episode]] = trajectory
                running.order.append(index_of[done_episode])
                if trajectory.failed is not None and trajectory.failed in ENGINE_FAULTS:
                    return trajectory.failed
                if self._will_be_filtered(running):
                    return EARLY_STOP
        finally:
            for episode in index_of:
                episode.cancel()
            await asyncio.gather(*index_of, return_exceptions=True)
        return None

    async def _next_done(
        self, running: _RunningGroup, done: asyncio.Queue[asyncio.Task[Trajectory]]
    ) -> asyncio.Task[Trajectory] | None:
        """Wait for the next episode that ends; return None if the group's time is over before.

        The wait has several parts. A part that takes much longer than it should shows that this process was suspended
        meanwhile, and that extends the group's deadline.
        """
        deadline_s = self.cfg.rollout.group_deadline_s
        while (remaining_s := deadline_s - running.seconds) > 0:
            part_s = min(remaining_s, deadline_s / SLICES)
            began = awake_time()
            try:
                async with asyncio.timeout(part_s):
                    return await done.get()
            except TimeoutError:
                continue
            finally:
                late_s = lateness(began, part_s)
                if late_s > 0:
                    running.start += late_s
                    running.was_suspended = True
        return None

    def _will_be_filtered(self, running: _RunningGroup) -> bool:
        if not self.cfg.rollout.early_stop or running.evaluation is not None:
            return False
        accuracy_range = entry_of(self.environments, running.task.env).filter.accuracy_range
        return will_be_filtered(running.by_index, self.cfg.rollout.min_valid, accuracy_range)

    async def _trajectory(self, running: _RunningGroup, index: int) -> Trajectory:
        """Sample and score one trajectory. A fault fails it."""
        trajectory = Trajectory(index, running.prompt_ids)
        migration = self.migration if running.evaluation is None else None
        try:
            with migration.writing(f"{running.key}#{index}") if migration else nullcontext():
                trajectory = await self._sample(running, index)
            if trajectory.failed is None and trajectory.reward is None:
                trajectory.reward, correct, parts = await self.rewards.score(trajectory, running.task)
                # A part of that name replaces the flag and may be a score: metrics count it as right above
                # CORRECT_ABOVE, filters take its mean.
                trajectory.parts |= {"correct": float(correct), **parts}
        except InfraError as e:
            trajectory.failed = e.reason
            trajectory.why = str(e)[:WHY_CHARS]
            trajectory.traceback = getattr(e, "user_traceback", "")
        running.on_trajectory(trajectory)
        return trajectory

    async def _sample(self, running: _RunningGroup, index: int) -> Trajectory:
        if self.agents is None:
            return await self._run_episode(running, index)
        if isinstance(self.agents, AgentFile):
            return await self.agents.run(
                running.task,
                index,
                running.prompt_ids.tolist(),
                engine=running.engine,
                temperature=running.limits.temperature,
                request_id=f"{running.key}#{index}",
                seed_of=self._request_seeds(self._seed(running, index)),
                held_by=lambda process: running.servers.update({index: process}),
            )
        return await self.agents.run(running.task, index, running.limits.temperature)

    def _seed(self, running: _RunningGroup, index: int) -> int:
        """Return a trajectory's seed, the same in every attempt of the group. Its session and request seeds use it."""
        return seed_for(self.cfg.train.seed, running.key.epoch, running.key.prompt, index)

    def _request_seeds(self, seed: int) -> Callable[[int], int | None]:
        """Return the function turn -> seed of its request: None, but with train.full_determinism_enable."""
        if self.cfg.train.full_determinism_enable:
            return lambda turn: seed_for(seed, turn)
        return lambda turn: None

    async def _run_episode(self, running: _RunningGroup, index: int) -> Trajectory:
        """Sample one trajectory by the turn loop, with an environment session of its own."""
        seed = self._seed(running, index)
        settings = entry_of(self.environments, running.task.env).env
        if running.evaluation is not None and running.evaluation.max_calls is not None:
            settings = settings.model_copy(update={"max_calls": running.evaluation.max_calls})
        protocol = make(settings)
        chat_format = self._chat_format(running.task)
        async with self.envs.session(running.task.env, _env_task(running.task, protocol), seed=seed) as env:
            try:
                trajectory = await run_episode(
                    running.prompt_ids,
                    index=index,
                    engine=running.engine,
                    env=env,
                    codec=self.codec,
                    protocol=protocol,
                    limits=running.limits,
                    request_id=f"{running.key}#{index}",
                    seed_of=self._request_seeds(seed),
                    renderer=chat_format.renderer(protocol, running.task) if chat_format else None,
                )
            finally:
                # Also if the episode is cancelled: a later fault of this server is shared by this trajectory.
                if env.server is not None:
                    running.servers[index] = env.server
        # A stable pseudo-random share of the trajectories is checked.
        is_checked = seed_for("drift", running.key, index) < self.cfg.rollout.drift_check * 2**63
        if trajectory.failed is None and is_checked:
            refuse_drift(trajectory, self.codec, rendered=chat_format is not None)
        return trajectory

    def _chat_format(self, task: Task) -> ChatFormat | None:
        return entry_of(self.chat_formats, task.env) if self.chat_formats else None

    def _limits(self, env: str, prompt_tokens: int, evaluation: EvalMode | None) -> Limits:
        settings = self.cfg.rollout
        limits = Limits(
            max_new_tokens=min(settings.max_new_tokens, self.cfg.data.max_len - prompt_tokens),
            output_max_tokens=entry_of(self.environments, env).env.output_max_tokens,
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            min_p=settings.min_p,
        )
        if evaluation is None:
            return limits
        return replace(limits, temperature=evaluation.temperature, top_p=evaluation.top_p, top_k=0, min_p=0.0)


def _env_task(task: Task, protocol: Any) -> dict[str, Any]:
    """Return what the environment is told of a row. Of equal names the row's own win: its meta, then its label."""
    columns = {"extra": dict(task.extra)} if task.extra else {}
    of_protocol = getattr(protocol, "env_task", {})
    return {**columns, **of_protocol, "label": task.label, **task.meta}


def _may_be_late(trajectory: Trajectory) -> bool:
    """Return True if a deadline that passed during a suspension may have ended this trajectory, or code that it ran."""
    if trajectory.failed is not None:
        return True
    return any(call.signals.get("error_type") == "time_limit" for call in trajectory.calls)


def _without_reward(trajectory: Trajectory, reason: str) -> Trajectory:
    """Return the trajectory as failed for `reason`, unless it failed by itself.

    It is a copy: `on_trajectory` was given the original, which ended well.
    """
    return trajectory if trajectory.failed else replace(trajectory, failed=reason, reward=None)
