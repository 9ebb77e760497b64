"""EnginePool: the rollout actors as one `Rollout`. Routes groups, keeps as many actors as are wanted, swaps
environments' URLs.

    run_group -> router -> actor         waits while none is up; an actor that refuses (QueueFull) is passed over for a
                                         while
    an actor dies, hangs, is silent      its groups raise EngineGone, which the pipeline issues again, to another one;
                                         its environment sessions are closed; a new one is started, gets the last push
                                         and a canary (`on_join`), and joins

Both the number of actors and the URLs can change during a run (`control.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup

from ..actors.fleet import Fleet
from ..actors.router import Router
from ..config import Config
from ..deadlines import Deadline, within
from ..envs.orphans import close_orphans
from ..errors import DeadlineMissed, EngineError, EngineGone, PayloadLost, QueueFull, WeightsUnverified
from ..types import Group, GroupKey, GroupMeta, Task
from .engine_handle import EngineHandle, spawn
from .ray_faults import death
from .rollout_actor import RolloutActor

log = logging.getLogger(__name__)
BLAMES_THE_ACTOR = {EngineError.reason, WeightsUnverified.reason, "aborted", "deadline"}
"""Why a group failed -> it goes to another actor next time. The rest (environment, verifier, a refused request) would
fail there as well."""
LONGEST = "push_pause_s"
"""The figure of an actor's load of which the longest over all actors is told; of the others it is the sum."""
PROVER_POLL_S = 0.5
"""Seconds between two looks for a publisher by an actor that waits for one."""
MAX_FAILED_PROMPTS = 3
"""An engine that says that it is well and fails so many prompts in a row, all different, is replaced: one prompt may be
at fault, three are not."""


class EnginePool:
    def __init__(
        self,
        cfg: Config,
        model: str,
        env_urls: Mapping[str, list[str]],
        actor_class: type = RolloutActor,
        shared: PlacementGroup | None = None,
    ) -> None:
        """`shared`: the reservation of the learner's ranks, in which actors take their places (train.colocate_all)."""
        self.shared = shared
        self.cfg, self.model, self.env_urls, self.actor_class = cfg, model, dict(env_urls), actor_class
        r = cfg.rollout
        self.fleet: Fleet[EngineHandle] = Fleet(
            self._spawn, size=cfg.vllm.num_engines, heartbeat_s=r.heartbeat_s, unresponsive_s=r.unresponsive_s
        )
        self.fleet.on_lost = self._orphaned
        self.fleet.prove = self._prove
        self.on_join: Callable[[EngineHandle, Callable[[], None]], Awaitable[None]] | None = None
        """Who brings a new actor to the current weights and proves it, then calls its second argument to admit it.
        None: new actors join with the model that they loaded."""
        self._closing: set[asyncio.Task] = set()
        self.lane_engines = self.lane_moves = 0.0
        """Actors that are the fast lane now, and responses moved so far (lanes.py)."""

    @classmethod
    async def start(
        cls,
        cfg: Config,
        model: str,
        env_urls: Mapping[str, list[str]],
        actor_class: type = RolloutActor,
        shared: PlacementGroup | None = None,
    ) -> EnginePool:
        self = cls(cfg, model, env_urls, actor_class, shared)
        await self.fleet.start()
        return self

    @property
    def router(self) -> Router[EngineHandle]:
        return self.fleet.router

    @property
    def members(self) -> list[EngineHandle]:
        """Those who sample, the same list always."""
        return self.fleet.members

    async def run_group(self, key: GroupKey, task: Task, mode=None) -> tuple[GroupMeta, Any]:
        """Raises EngineGone when the actor died under it, VersionGone when none is left of the version that `mode`
        evaluates, PipelineError when none is left and none will come."""
        version = mode.version if mode else None
        n = mode.n if mode else self.cfg.rollout.n_samples_per_prompt + self.cfg.rollout.oversample

        def has_it(member: EngineHandle) -> bool:
            return version is None or member.version == version

        while True:
            async with self.router.place(task.prompt, n, has_it, aside=mode is not None) as member:
                try:
                    return await self._run_on(member, key, task, mode)
                except QueueFull as e:
                    self.router.full(member.name, e.retry_after_s)

    async def _run_on(self, member: EngineHandle, key: GroupKey, task: Task, mode) -> tuple[GroupMeta, Any]:
        meta, payload = await member.run_group(key, task, mode)
        self.router.told(member.name, meta.load)
        if meta.failed in BLAMES_THE_ACTOR:
            self.router.blame(task.prompt, member.name)
        if meta.failed == EngineError.reason:
            await self._engine_failed(member, task.prompt)
        elif meta.failed is None:
            member.failed_prompts.clear()
        return meta, payload

    async def _engine_failed(self, member: EngineHandle, prompt: str) -> None:
        """A group failed by its engine: is the engine gone (EngineGone), or only this group? The engine is asked."""
        await member.heartbeat()
        member.failed_prompts.add(prompt)
        if len(member.failed_prompts) >= MAX_FAILED_PROMPTS:
            why = f"its engine says that it is well, but failed {MAX_FAILED_PROMPTS} different prompts in a row"
            self.fleet.lost(member, why)
            raise EngineGone(f"{member.name} is lost: {why}.")

    async def some(self) -> None:
        """Until an actor is up and answers. Raises PipelineError when none is left and none will come."""
        async with self.router.place("", 0):
            return

    def resize(self, actors: int) -> None:
        """From now on so many are wanted: new ones are started, those too many finish their groups and leave."""
        self.fleet.resize(actors)

    async def set_env_urls(self, urls: Mapping[str, list[str]]) -> None:
        """Swap the map everywhere. New sessions go to healthy servers of it; open ones end where they are."""
        self.env_urls = dict(urls)
        sending = [self._send_env_urls(member) for member in self.members]
        results = await asyncio.gather(*sending, return_exceptions=True)
        for error in results:
            # its successor starts with the new map
            if isinstance(error, BaseException) and not isinstance(error, EngineGone):
                raise error

    async def _send_env_urls(self, member: EngineHandle) -> None:
        await member.call(RolloutActor.set_env_urls, self.env_urls, deadline=member.unresponsive)

    async def _spawn(self, index: int) -> EngineHandle:
        more = {} if self.shared is None else {"shared": self.shared}
        return await spawn(self.actor_class, index, self.cfg, self.model, self.env_urls, self.fleet.lost, **more)

    async def _prove(self, member: EngineHandle, admit: Callable[[], None]) -> None:
        """Bring a new member to where the others are, before anything is sent to it."""
        await self._send_env_urls(member)  # they may have been swapped while the model was loading
        if self.on_join:
            await self.on_join(member, admit)

    async def wait_for_prover(self, member: EngineHandle, admit: Callable[[], None]) -> None:
        """As `on_join` while the learner is started again: nobody can prove a new actor, and it waits for who can.

        An actor that joined now would hold the weights that it loaded, while the others hold the last push."""
        while self.on_join == self.wait_for_prover:
            await asyncio.sleep(PROVER_POLL_S)
        if self.on_join:
            await self.on_join(member, admit)

    def _orphaned(self, member: EngineHandle) -> None:
        """Close the environment sessions that a dead actor left open."""
        servers = set().union(*self.env_urls.values(), member.env_servers, *(m.env_servers for m in self.members))
        token = os.environ.get(self.cfg.env.token_env)
        task = asyncio.create_task(
            close_orphans(member.owner, sorted(servers), token=token), name=f"close sessions of {member.name}"
        )
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def fetch(self, payloads: Sequence[Any]) -> list[Group]:
        """Raises PayloadLost when the node that held one is gone, or does not hand it over in time."""
        try:
            return await within(
                Deadline.of(self.cfg, "rollout.unresponsive_s"),
                _all(payloads),
                f"The transfer of {len(payloads)} groups",
            )
        except DeadlineMissed as e:
            raise PayloadLost(f"{e} They are issued again from the last checkpoint.") from e
        except ray.exceptions.RayError as e:
            if (what := death(e)) is None:
                raise
            raise PayloadLost(
                f"A sampled group cannot be fetched: {what}. It is issued again from the last checkpoint."
            ) from e

    async def store(self, group: Group) -> Any:
        return ray.put(group)

    def where(self, key: GroupKey) -> str:
        return next((f"on {m.name}" for m in self.members if key in m.running), "waiting for an actor")

    def engine_stats(self) -> dict[str, float]:
        """Actors; as of each one's last group the sequences running and waiting and the preemptions, the samples of the
        groups placed there since, those of evaluations (aside) and how many sequences run at once (width); the longest
        pause by a push. Of the actors that are up."""
        figures = self.router.totals(LONGEST)
        if self.cfg.pipeline.fast_lane != "off":
            figures |= {"lane_engines": self.lane_engines, "lane_moves": self.lane_moves}
        return figures

    async def busy_intervals(self) -> dict[str, dict[tuple[str, str], list[tuple[float, float]]]]:
        """Per actor: when at least one of its requests was decoding, and its environments' sessions were started or
        judged, since the last call; seconds since the epoch by this node's clock. See RolloutActor."""
        members = list(self.members)
        found = await asyncio.gather(*(m.busy_intervals() for m in members), return_exceptions=True)
        return {m.name: spans for m, spans in zip(members, found, strict=True) if not isinstance(spans, BaseException)}

    async def activity(self) -> dict[str, float]:
        """The sums of what the actors do right now: see RolloutActor.activity. An actor that does not answer in time
        is left out."""
        asking = [member.call(RolloutActor.activity, deadline=member.unresponsive) for member in self.members]
        found = await asyncio.gather(*asking, return_exceptions=True)
        total: Counter[str] = Counter()
        for figures in found:
            if not isinstance(figures, BaseException):
                total.update(figures)
        return dict(total)

    async def stop(self) -> None:
        """Ends the actors; one that does not answer is killed."""
        await self.fleet.stop()
        await asyncio.gather(*self._closing, return_exceptions=True)


async def _all(payloads: Sequence[Any]) -> list[Group]:
    return list(await asyncio.gather(*payloads))
