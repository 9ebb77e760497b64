"""One rollout actor as the controller holds it: its process, its reserved resources, the groups that it runs.

    weight publisher, transports --+
    shared GPUs, fast lane --------+--> EngineHandle.call --> RolloutActor.invoke (Ray) --> the actor or its engine
    EnginePool --------------------+

Every call has a deadline and ends at once when the actor is given up, whatever Ray still knows of its process. A call
that finds the actor dead, its engine broken, or no answer in time reports it (`on_death`), so that the actor is
replaced, and raises EngineGone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, TypeVarTuple

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ..config import Config
from ..errors import ClusterFull, DeadlineMissed, EngineError, EngineGone, InfraError
from ..rollout.group_runner import EvalMode
from ..telemetry.clock import Clock
from ..types import GroupKey, GroupMeta, Task
from ..waiting.deadlines import Deadline, GivenUp, answer_deadline, within
from .lost import end_of
from .nodes import engine_room, shared_room
from .ray_faults import death, own_error
from .ray_session import by_node, place, worker_env
from .rollout_actor import RolloutActor
from .shared_dir import marked
from .tokens import tokens
from .versions import required_versions

STOP_DEADLINE = Deadline(20.0, "engine_handle.STOP_DEADLINE")
"""Seconds for an actor to abort its requests and close its sessions after it was asked to stop. Then it is killed."""
Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


@dataclass(eq=False)
class EngineHandle:
    """One remote engine. Implements ports.RemoteEngine; belongs to one event loop.

    Attributes:
        index: Its place in the pool, from 0. A replacement takes the index, and with it the name, of a lost engine.
        actor: The Ray handle of its process.
        placement: The resources that were reserved for it alone; None if it shares those of a learner rank.
        on_death: Called with this handle and a reason when the engine is lost.
        cfg: The run's configuration, for deadlines.
        url: The HTTP endpoint for agents.
        running: Groups that it runs now.
        env_servers: Servers on which it may hold sessions, as of the last heartbeat; processes behind a shared port
            included.
        failed_prompts: Prompts that its engine failed since it last finished a group, although it reports healthy.
        version: Version of the weights that were last proved on it; None before the first proof.
        given_up: Done when the process is ended. Calls wait for it beside their answers: a task for each of them would
            cost as much as the call.
        clock: Its node's clock, compared with the controller's.
    """

    index: int
    actor: Any
    placement: PlacementGroup | None
    on_death: Callable[[EngineHandle, str], None]
    cfg: Config
    url: str = ""
    running: set[GroupKey] = field(default_factory=set)
    env_servers: set[str] = field(default_factory=set)
    failed_prompts: set[str] = field(default_factory=set)
    version: int | None = None
    given_up: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    clock: Clock = field(default_factory=lambda: Clock("its node"))

    @property
    def name(self) -> str:
        return f"rollout-{self.index}"

    @property
    def owner(self) -> str:
        """The prefix of the ids of its environment sessions."""
        return self.actor._actor_id.hex()

    @property
    def unresponsive(self) -> Deadline:
        """The deadline of calls that only ask something."""
        return answer_deadline(self.cfg)

    async def call(
        self, method: Callable[[Any, *Arguments], Awaitable[Result]], *args: *Arguments, deadline: Deadline
    ) -> Result:
        """Call a method of the remote actor, or of its engine, and return the result.

        The method is given as an attribute of RolloutActor or of ports.RolloutEngine, so that arguments and result are
        type-checked:

            texts = await handle.call(RolloutEngine.sample_canary, prompt_ids, 16, 0, deadline=push_deadline)

        What the method itself raises is raised here, EngineError excepted.

        Raises:
            EngineGone: The process died, its engine is broken (EngineError), or the deadline passed. The pool replaces
                the engine.
        """
        return await self._await(self.actor.invoke.remote(method.__name__, *args), method.__name__, deadline)

    async def run_group(self, key: GroupKey, task: Task, mode: EvalMode | None = None) -> tuple[GroupMeta, Any]:
        """Run one group and return its metadata and an object reference to its payload. Raises as `call` does."""
        result, payload = self.actor.run_group.options(num_returns=2).remote(key, task, mode)
        # The actor ends a group at its deadline by itself; only a broken actor takes longer than both.
        deadline = Deadline.of(self.cfg, "rollout.group_deadline_s") + self.unresponsive
        self.running.add(key)
        try:
            return await self._await(result, "run_group", deadline), payload
        except asyncio.CancelledError:
            ray.cancel(result)  # The group is not wanted any more, so the engine is free for others.
            raise
        finally:
            self.running.discard(key)

    async def heartbeat(self) -> None:
        """Ask the process and its engine for a sign of life.

        Raises:
            EngineGone: As `call`.
        """
        self.env_servers |= set(await self.call(RolloutActor.heartbeat, deadline=self.unresponsive))

    async def busy_intervals(self) -> dict[tuple[str, str], list[tuple[float, float]]]:
        """Return what RolloutActor.busy_intervals does, by the clock of the controller."""
        sent = time.time()
        time_there, spans_by_track = await self.call(RolloutActor.busy_intervals, deadline=self.unresponsive)
        self.clock.record_answer(sent, time_there, time.time())
        to_local = self.clock.to_local
        return {
            track: [(to_local(start), to_local(end)) for start, end in spans] for track, spans in spans_by_track.items()
        }

    async def discard(self, reason: str) -> None:
        """End the process because its weights are unknown, with all that it sampled. The pool replaces it."""
        self.on_death(self, reason)

    async def stop(self) -> None:
        """End the actor in good order; kill it if it does not answer within STOP_DEADLINE."""
        with suppress(InfraError, ray.exceptions.RayError):
            await within(STOP_DEADLINE, self.actor.invoke.remote("stop"), f"stop of {self.name}")
        self.kill()

    def kill(self) -> None:
        """End the process and release its resources. Calls under way raise EngineGone."""
        if not self.given_up.done():
            self.given_up.set_result(None)
        try:
            ray.kill(self.actor)
        finally:
            if self.placement is not None:
                remove_placement_group(self.placement)

    async def _await(self, answer: Awaitable[Any], method: str, deadline: Deadline) -> Any:
        try:
            return await within(deadline, answer, f"{method} of {self.name}", unless=self.given_up)
        except EngineGone:  # The method itself raised it, about another engine.
            raise
        except GivenUp:  # The process is ended: its answer would never come.
            raise EngineGone(f"{self.name} was given up.") from None
        except (DeadlineMissed, EngineError) as error:
            cause: Exception = error
            reason = str(own_error(error))
            if isinstance(error, EngineError):  # vLLM's own process may have been killed, not the actor.
                reason = await end_of(self.cfg, self.name, reason, certain=False)
        except ray.exceptions.RayError as error:
            cause = error
            reason_of_death = death(error)
            if reason_of_death is None:
                raise
            reason = await end_of(self.cfg, self.name, reason_of_death)
        message = f"{self.name} is lost with {len(self.running)} groups: {reason}"
        self.on_death(self, reason)
        raise EngineGone(message) from cause


async def spawn(
    actor_class: type,
    index: int,
    cfg: Config,
    env_urls: Mapping[str, list[str]],
    on_death: Callable[[EngineHandle, str], None],
    shared: PlacementGroup | None = None,
) -> EngineHandle:
    """Reserve resources, start a rollout actor and let it load the model.

    Whatever happens, cancellation included: an actor that does not come up keeps no resources.

    Args:
        actor_class: RolloutActor, or a subclass.
        index: The engine's place in the pool.
        cfg: The run's configuration.
        env_urls: Environment -> its servers.
        on_death: Called with the handle and a reason when the engine is lost.
        shared: The reservation of the learner ranks, in which the engine takes its place beside rank `index`.

    Raises:
        ClusterFull: There is no room.
        EngineGone: It died, or was not up within timeouts.start_s. What its `start` raised is raised as it is.
    """
    if shared is None:
        room = engine_room(cfg)
        placement = own = await place(room, f"rollout engine {index}", cfg)
        strategy = PlacementGroupSchedulingStrategy(placement, placement_group_capture_child_tasks=room.workers_by_ray)
    else:
        room = shared_room(cfg)
        own = None
        bundles = by_node(shared)
        if index >= len(bundles):
            raise ClusterFull(
                f"An engine stands beside each of the {len(bundles)} learner ranks (train.colocate_all,"
                f" train.share_gpus), and engine {index} has none. Ask for fewer engines."
            )
        strategy = PlacementGroupSchedulingStrategy(shared, placement_group_bundle_index=bundles[index])
    try:
        actor = (
            ray.remote(actor_class)
            .options(
                num_cpus=room.num_cpus,
                num_gpus=room.num_gpus,
                max_concurrency=10_000,
                runtime_env={"env_vars": worker_env(cfg)},
                scheduling_strategy=strategy,
            )
            .remote(index)
        )
    except BaseException:
        if own is not None:
            remove_placement_group(own)
        raise
    handle = EngineHandle(index, actor, own, on_death, cfg)
    deadline = Deadline.of(cfg, "timeouts.start_s")
    try:
        with marked(cfg.run_dir) as mark:
            packages = required_versions()
            sent = time.time()
            report = await handle.call(RolloutActor.check_node, mark, packages, deadline=deadline)
        handle.clock = Clock(f"node {report.address}")
        handle.clock.record_answer(sent, report.time, time.time())
        handle.url = await handle.call(RolloutActor.start, cfg, env_urls, tokens(cfg), deadline=deadline)
    except BaseException:
        handle.kill()
        raise
    return handle
