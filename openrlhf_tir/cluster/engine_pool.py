"""All rollout engines of a run, as the pipeline sees them: they run groups, and there are as many as are wanted.

    pipeline, evaluation --> EnginePool.run_group --> Router (which engine) --> EngineHandle --> RolloutActor (Ray)
    weight publisher ------> EnginePool.members, EngineHandle.call
    control file ----------> EnginePool.resize, EnginePool.set_env_urls

What happens to a group: it waits while there is no engine. If its engine dies, hangs or goes silent, the group raises
EngineGone, and the pipeline issues it again.

What happens to a lost engine: its environment sessions are closed, and another engine is launched in its place
(cluster/fleet.py). The new one gets the last push and a canary (`attach_prover`) before it gets groups.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

import ray
from ray.util.placement_group import PlacementGroup

from ..config import Config
from ..config.secrets import ENV_TOKEN
from ..errors import ConfigError, DeadlineMissed, EngineError, EngineGone, PayloadLost
from ..pipeline.router import Router
from ..rollout.environment_client.orphans import close_orphans
from ..rollout.group_runner import EvalMode
from ..rollout.sample_selection import ENGINE_FAULTS
from ..types import Group, GroupKey, GroupMeta, Task
from ..waiting.deadlines import answer_deadline, within
from .engine_handle import EngineHandle, spawn
from .fleet import Admit, Fleet, Prover
from .ray_faults import death
from .rollout_actor import RolloutActor

Answer = TypeVar("Answer")
AVOID_THE_ENGINE = ENGINE_FAULTS | {"deadline"}
"""Reasons of a failed group for which its prompt goes to another engine next time: a fault of the engine, or a deadline
that a slow engine may have missed. Other reasons (environment, verifier, a refused request) would fail there as
well."""
MAX_FAILED_PROMPTS = 3
"""An engine that reports healthy but fails this many different prompts in a row is replaced: one prompt can be at
fault, three are not."""


class EnginePool:
    """The rollout engines of a run. Implements ports.Rollout; belongs to one event loop."""

    def __init__(
        self,
        cfg: Config,
        env_urls: Mapping[str, list[str]],
        actor_class: type = RolloutActor,
        shared: PlacementGroup | None = None,
    ) -> None:
        """Create a pool; nothing is launched before `start`.

        Args:
            cfg: The run's configuration.
            env_urls: Environment -> its servers.
            actor_class: RolloutActor, or a subclass.
            shared: The reservation of the learner ranks, in which the engines take their places (train.colocate_all).
        """
        self.cfg = cfg
        self.env_urls = dict(env_urls)
        self.actor_class = actor_class
        self.shared = shared
        self.fleet = Fleet(
            self._spawn,
            size=cfg.vllm.num_engines,
            unresponsive=answer_deadline(cfg),
        )
        self.fleet.on_lost = self._close_sessions_of
        self.fleet.prove = self._prove
        self.prover: Prover | None = None
        """Proves new engines. None: they join with the model that they loaded, or wait after `hold_new_engines`."""
        self._may_join = asyncio.Event()
        self._may_join.set()
        self.lane_engines = 0.0
        """Engines of the fast lane now (lanes.py)."""
        self.lane_moves = 0.0
        """Responses that were moved to the fast lane so far."""
        self._closing: set[asyncio.Task] = set()

    async def start(self) -> Self:
        """Launch the first engines and return the pool. Raises what the first failed launch raised."""
        await self.fleet.start()
        return self

    @property
    def router(self) -> Router[EngineHandle]:
        """Chooses the engine of each group."""
        return self.fleet.router

    @property
    def members(self) -> list[EngineHandle]:
        """The engines that sample. Callers may keep a reference: the list object never changes."""
        return self.fleet.members

    async def run_group(self, key: GroupKey, task: Task, mode: EvalMode | None = None) -> tuple[GroupMeta, Any]:
        """Run one group on an engine and return its metadata and an object reference to its payload.

        Args:
            key: Identity of this attempt; it is also the idempotency key of the environment sessions.
            task: The prompt.
            mode: If given, sample for an evaluation, and only on engines that hold `mode.version`.

        Raises:
            EngineGone: The engine died while it ran the group. The pipeline issues the group again.
            VersionGone: No engine holds the requested version any more.
            PipelineError: No engine is left and none will come.
        """
        version = mode.version if mode else None
        samples = mode.n if mode else self.cfg.rollout.n_samples_per_prompt

        def holds_version(engine: EngineHandle) -> bool:
            return version is None or engine.version == version

        async with self.router.place(task.prompt, samples, holds_version, mode is not None) as engine:
            return await self._run_on(engine, key, task, mode)

    async def _run_on(
        self, engine: EngineHandle, key: GroupKey, task: Task, mode: EvalMode | None
    ) -> tuple[GroupMeta, Any]:
        meta, payload = await engine.run_group(key, task, mode)
        self.router.record_report(engine.name, meta.load)
        if meta.failed in AVOID_THE_ENGINE:
            self.router.record_failure(task.prompt, engine.name)
        if meta.failed == EngineError.reason:
            await self._judge_engine(engine, task.prompt)
        elif meta.failed is None:
            engine.failed_prompts.clear()
        return meta, payload

    async def _judge_engine(self, engine: EngineHandle, prompt: str) -> None:
        """Decide whether an engine that failed a group (reason engine_error) must be replaced.

        If it must, the group's reason in the ledger becomes EngineGone's, engine_gone.

        Raises:
            EngineGone: The engine is broken, or failed too many different prompts in a row.
        """
        await engine.heartbeat()
        engine.failed_prompts.add(prompt)
        if len(engine.failed_prompts) >= MAX_FAILED_PROMPTS:
            reason = f"the engine reports healthy but failed {MAX_FAILED_PROMPTS} different prompts in a row"
            self.fleet.mark_lost(engine, reason)
            raise EngineGone(f"{engine.name} is lost: {reason}.")

    async def wait_until_healthy(self) -> None:
        """Wait until at least one engine accepts groups.

        Raises:
            PipelineError: None is left, and none will come.
        """
        async with self.router.place("", 0):
            return

    def resize(self, size: int) -> None:
        """Set the number of engines. New ones are launched; surplus ones finish their groups and are stopped.

        Raises:
            ConfigError: They share the GPUs of the learner ranks, of which there are fewer.
        """
        ranks = self.cfg.actor.world_size
        if self.shared is not None and size > ranks:
            raise ConfigError(
                f"An engine stands beside each of the {ranks} learner ranks (train.colocate_all, train.share_gpus),"
                f" so {size} engines have no room. Ask for {ranks} or fewer."
            )
        self.fleet.resize(size)

    async def set_env_urls(self, urls: Mapping[str, list[str]]) -> None:
        """Swap the environment servers on every engine. Open sessions end where they are."""
        self.env_urls = dict(urls)
        sending = [self._send_env_urls(engine) for engine in self.members]
        results = await asyncio.gather(*sending, return_exceptions=True)
        for error in results:
            # The replacement of a lost engine starts with the new servers.
            if isinstance(error, BaseException) and not isinstance(error, EngineGone):
                raise error

    async def _send_env_urls(self, engine: EngineHandle) -> None:
        await engine.call(RolloutActor.set_env_urls, self.env_urls, deadline=engine.unresponsive)

    async def _spawn(self, index: int) -> EngineHandle:
        return await spawn(self.actor_class, index, self.cfg, self.env_urls, self.fleet.mark_lost, self.shared)

    def attach_prover(self, prover: Prover) -> None:
        """Set what brings new engines to the current weights and proves them, before they are members.

        Engines that wait because of `hold_new_engines` go on.
        """
        self.prover = prover
        self._may_join.set()

    def detach_prover(self, prover: Prover) -> None:
        """Take a prover away, if it is still the attached one: new engines then join with the model that they load."""
        if self.prover == prover:
            self.prover = None

    def hold_new_engines(self) -> None:
        """Keep new engines from joining until the next `attach_prover`. Call it when the learner restarts.

        Nobody can prove an engine meanwhile. One that joined would hold the weights that it loaded, while the others
        hold the last push.
        """
        self.prover = None
        self._may_join.clear()

    async def _prove(self, engine: EngineHandle, admit: Admit) -> None:
        """Bring a new engine to where the others are, before it gets groups."""
        await self._send_env_urls(engine)  # they may have been swapped while the model was loading
        await self._may_join.wait()
        if self.prover is not None:
            await self.prover(engine, admit)

    def _close_sessions_of(self, lost: EngineHandle) -> None:
        """Begin to close the environment sessions that a lost engine left open."""
        servers = set().union(*self.env_urls.values(), lost.env_servers, *(m.env_servers for m in self.members))
        token = os.environ.get(ENV_TOKEN)
        task = asyncio.create_task(
            close_orphans(lost.owner, sorted(servers), token=token), name=f"close sessions of {lost.name}"
        )
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def fetch(self, payloads: Sequence[Any]) -> list[Group]:
        """Return the groups behind object references.

        Raises:
            PayloadLost: The node that held one is gone, or did not hand it over in time.
        """
        try:
            return await within(
                answer_deadline(self.cfg),
                asyncio.gather(*payloads),
                f"The transfer of {len(payloads)} groups",
            )
        except DeadlineMissed as error:
            raise PayloadLost(f"{error} They are issued again from the last checkpoint.") from error
        except ray.exceptions.RayError as error:
            reason = death(error)
            if reason is None:
                raise
            raise PayloadLost(
                f"A sampled group cannot be fetched: {reason}. It is issued again from the last checkpoint."
            ) from error

    async def store(self, group: Group) -> Any:
        """Return an object reference to a group that was read from a checkpoint."""
        return ray.put(group)

    def where(self, key: GroupKey) -> str:
        """Return the place of a group for a message: "on rollout-0"."""
        return next((f"on {m.name}" for m in self.members if key in m.running), "waiting for an actor")

    def engine_stats(self) -> dict[str, float]:
        """Return the stats of all engines together, as of the last group of each (see Router.total_stats)."""
        stats = self.router.total_stats()
        if self.cfg.pipeline.fast_lane != "off":
            stats |= {"lane_engines": self.lane_engines, "lane_moves": self.lane_moves}
        return stats

    async def busy_intervals(self) -> dict[str, dict[tuple[str, str], list[tuple[float, float]]]]:
        """Return when each engine was decoding, and its environments' sessions were started or judged.

        Returns:
            Engine -> track and span of the timeline -> (start, end) since the last call, in seconds since the epoch by
            this node's clock. See RolloutActor.busy_intervals. Engines that do not answer are left out.
        """
        return await self._answers_to(EngineHandle.busy_intervals)

    async def activity(self) -> dict[str, float]:
        """Return what all engines together do right now (see RolloutActor.activity).

        Engines that do not answer in time are left out.
        """
        answers = await self._answers_to(
            lambda engine: engine.call(RolloutActor.activity, deadline=engine.unresponsive)
        )
        total: Counter[str] = Counter()
        for activity in answers.values():
            total.update(activity)
        return dict(total)

    async def _answers_to(self, ask: Callable[[EngineHandle], Awaitable[Answer]]) -> dict[str, Answer]:
        """Return what the engines answer, by name. Those that do not answer are left out."""
        members = list(self.members)
        answers = await asyncio.gather(*map(ask, members), return_exceptions=True)
        return {
            member.name: answer
            for member, answer in zip(members, answers, strict=True)
            if not isinstance(answer, BaseException)
        }

    async def stop(self) -> None:
        """Stop every engine; kill those that do not answer."""
        await self.fleet.stop()
        await asyncio.gather(*self._closing, return_exceptions=True)
