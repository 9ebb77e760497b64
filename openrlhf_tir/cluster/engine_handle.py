"""EngineHandle: one rollout actor as the controller holds it: its process, its resources, the groups that it runs.

Every call to the actor has a deadline, and ends at once when the actor is given up, whatever Ray still knows of its
process. A call that finds the actor dead, its engine broken or no answer in time reports it (`on_death`), so that it is
replaced, and raises EngineGone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ..config import Config
from ..deadlines import Deadline, GivenUp, within
from ..errors import ClusterFull, DeadlineMissed, EngineError, EngineGone, InfraError
from ..logs.clock import Clock
from ..types import BroadcastRendezvous, BroadcastResult, Canary, Completion, GroupKey
from .lost import end_of
from .nodes import engine_room, shared_room
from .ray_faults import death
from .ray_session import by_node, place, worker_env
from .shared_dir import marked
from .tokens import tokens
from .versions import wanted

log = logging.getLogger(__name__)
STOP = Deadline(20.0, "member.STOP")
"""An actor that is asked to stop aborts its requests and closes its sessions: seconds. Then it is killed."""


class Once:
    """Something that happens at most once, as one future for all who wait for it beside something else: a task for each
    would cost a call as much as its answer's. Belongs to one event loop."""

    def __init__(self) -> None:
        self._is_set = False
        self._future: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._is_set = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    @property
    def future(self) -> asyncio.Future[None]:
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
            if self._is_set:
                self._future.set_result(None)
        return self._future


@dataclass(eq=False)
class EngineHandle:
    """What is in `EnginePool.members` was proved to hold the current weights. `on_death(member, why)` is told once it
    is no more.

    Belongs to one event loop.
    """

    index: int
    actor: Any
    placement: PlacementGroup | None
    on_death: Callable[[EngineHandle, str], None]
    cfg: Config
    url: str = ""
    running: set[GroupKey] = field(default_factory=set)
    env_servers: set[str] = field(default_factory=set)
    """Servers on which it may hold sessions, processes behind a front port included; as of the last heartbeat."""
    failed_prompts: set[str] = field(default_factory=set)
    """Prompts that its engine failed on since it last answered one, though it says that it is well."""
    version: int | None = None
    """The version of the weights that it was last proved to have; None before the first push."""
    given_up: Once = field(default_factory=Once)
    clock: Clock = field(default_factory=lambda: Clock("its node"))

    @property
    def name(self) -> str:
        return f"rollout-{self.index}"

    @property
    def owner(self) -> str:
        """Begins the ids of its environment sessions."""
        return self.actor._actor_id.hex()

    async def call(self, ref: Awaitable[Any], setting: str | Deadline, what: str) -> Any:
        """Await a result, at most for the seconds that the configuration's field `setting` holds.

        Raises EngineGone when the process or its engine is no more or does not answer in time, and has it replaced.
        """
        deadline = setting if isinstance(setting, Deadline) else Deadline.of(self.cfg, setting)
        try:
            return await within(deadline, _result(ref), f"{what} of {self.name}", unless=self.given_up.future)
        except EngineGone:
            raise
        except GivenUp:  # a stopped process would keep its caller
            raise EngineGone(f"{self.name} was given up.") from None
        except (DeadlineMissed, EngineError) as e:
            why, error = str(getattr(e, "cause", None) or e), e  # what crossed Ray has its whole traceback as its text
            if isinstance(e, EngineError):  # vLLM's own process may have been killed, not the actor
                why = await end_of(self.cfg, self.name, why, certain=False)
        except ray.exceptions.RayError as e:
            what_happened = death(e)
            if what_happened is None:
                raise
            why, error = await end_of(self.cfg, self.name, what_happened), e
        lost = f"{self.name} is lost with {len(self.running)} groups: {why}"
        self.on_death(self, why)
        raise EngineGone(lost) from error

    async def run_group(self, ref: Awaitable[Any]) -> Any:
        """The metadata of a group that was started. The actor ends it at its deadline: this waits longer."""
        deadline = Deadline.of(self.cfg, "rollout.group_deadline_s") + Deadline.of(self.cfg, "rollout.unresponsive_s")
        return await self.call(ref, deadline, "A group")

    async def update_weights(
        self, path, version: int, digest: str, canary: Canary | None = None, link: str | None = None
    ) -> list[Completion]:
        return await self.call(
            self.actor.update_weights.remote(path, version, digest, canary, link),
            "timeouts.push_s",
            f"The push of version {version}",
        )

    async def receive_weights(self, meeting: BroadcastRendezvous, first_rank: int, push: str) -> BroadcastResult:
        return await self.call(
            self.actor.receive_weights.remote(meeting, first_rank, push), "timeouts.push_s", "A broadcast"
        )

    async def use_received(self, version: int, digest: str, canary: Canary | None = None) -> list[Completion]:
        return await self.call(
            self.actor.use_received.remote(version, digest, canary), "timeouts.push_s", f"The use of version {version}"
        )

    async def proved(self, version: int) -> None:
        await self.call(
            self.actor.proved.remote(version), "rollout.unresponsive_s", f"The verdict on version {version}"
        )
        self.version = version

    async def canary(self, prompts: list[list[int]], max_tokens: int, seed: int) -> list:
        return await self.call(self.actor.canary.remote(prompts, max_tokens, seed), "timeouts.push_s", "The canary")

    async def sleep(self) -> None:
        """See RolloutEngine."""
        await self.call(self.actor.sleep.remote(), "timeouts.push_s", "The sleep")

    async def wake(self) -> None:
        await self.call(self.actor.wake.remote(), "timeouts.push_s", "The wake-up")

    async def discard(self, why: str) -> None:
        """Its weights are unknown: the process is ended with all that it sampled, and another started."""
        self.on_death(self, why)

    async def heartbeat(self) -> None:
        """Raises EngineGone when the process, or the engine in it, does not answer."""
        self.env_servers |= set(
            await self.call(self.actor.heartbeat.remote(), "rollout.unresponsive_s", "The heartbeat")
        )

    async def set_env_urls(self, urls: Mapping[str, list[str]]) -> None:
        await self.call(self.actor.set_env_urls.remote(urls), "rollout.unresponsive_s", "The swap of environments")

    async def under_way(self) -> Any:
        """See MovesResponses."""
        return await self.call(
            self.actor.under_way.remote(), "rollout.unresponsive_s", "The report of what is under way"
        )

    async def move(self, trajectory: str, name: str, target: Any) -> bool:
        """See MovesResponses."""
        return await self.call(
            self.actor.move.remote(trajectory, name, target), "rollout.unresponsive_s", "The move of a response"
        )

    async def busy_intervals(self) -> dict[tuple[str, str], list[tuple[float, float]]]:
        """See EnginePool."""
        sent = time.time()
        theirs, found = await self.call(
            self.actor.busy_intervals.remote(), "rollout.unresponsive_s", "The report of busy times"
        )
        self.clock.heard(sent, theirs, time.time())
        ours = self.clock.ours
        return {what: [(ours(start), ours(end)) for start, end in spans] for what, spans in found.items()}

    async def activity(self) -> dict[str, float]:
        """See RolloutActor.activity."""
        return await self.call(self.actor.activity.remote(), "rollout.unresponsive_s", "The report of activity")

    async def stop(self) -> None:
        """End the actor in good order; it is killed when it does not answer in time."""
        with suppress(InfraError, ray.exceptions.RayError):
            await within(STOP, _result(self.actor.stop.remote()), f"The end of {self.name}")
        self.kill()

    def kill(self) -> None:
        """End the process and give its resources back. Calls under way raise EngineGone."""
        self.given_up.set()
        try:
            ray.kill(self.actor)
        finally:
            if self.placement is not None:
                remove_placement_group(self.placement)


async def _result(ref: Awaitable[Any]) -> Any:
    return await ref


async def spawn(
    actor_class: type,
    index: int,
    cfg: Config,
    model: str,
    env_urls: Mapping[str, list[str]],
    on_death: Callable[[EngineHandle, str], None],
    shared: PlacementGroup | None = None,
) -> EngineHandle:
    """Reserve, start, load the model. Raises ClusterFull when there is no room, EngineGone when it died or was not up
    in time, what its `start` raised.

    Whatever happens, cancellation included: an actor that does not come up keeps no resources. `shared`: what the
    learner's ranks have reserved, of which it takes its place beside rank `index`.
    """
    if shared is None:
        room = engine_room(cfg)
        placement = own = await place(room, f"rollout engine {index}", cfg)
        there = PlacementGroupSchedulingStrategy(placement, placement_group_capture_child_tasks=room.workers_by_ray)
    else:
        room, own, bundles = shared_room(cfg), None, by_node(shared)
        if index >= len(bundles):
            raise ClusterFull(
                f"An engine stands beside each of the {len(bundles)} learner ranks (train.colocate_all,"
                f" train.share_gpus), and engine {index} has none. Ask for fewer engines."
            )
        there = PlacementGroupSchedulingStrategy(shared, placement_group_bundle_index=bundles[index])
    try:
        actor = (
            ray.remote(actor_class)
            .options(
                num_cpus=room.num_cpus,
                num_gpus=room.num_gpus,
                max_concurrency=10_000,
                runtime_env={"env_vars": worker_env(cfg)},
                scheduling_strategy=there,
            )
            .remote(index)
        )
    except BaseException:
        if own is not None:
            remove_placement_group(own)
        raise
    member = EngineHandle(index, actor, own, on_death, cfg)
    try:
        with marked(cfg.run_dir) as mark:
            theirs, sent = wanted(), time.time()
            address, now = await member.call(
                actor.sees.remote(mark, theirs), "timeouts.start_s", "The look at the run's directory"
            )
        member.clock = Clock(f"node {address}")
        member.clock.heard(sent, now, time.time())
        member.url = await member.call(
            actor.start.remote(cfg, model, env_urls, tokens(cfg)), "timeouts.start_s", "The start"
        )
    except BaseException:
        member.kill()
        raise
    return member
