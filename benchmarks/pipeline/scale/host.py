"""Several emulated engines or ranks in one process, each behind the remote surface of an actor of its own.

    controller ── handle.run_group.options(num_returns=2).remote(...) ──> Host.call(i, "run_group", ...)
               ──> actor i of the process

A process of its own takes two CPU seconds to start, whatever it holds: 96 of them are the machine's time, not the
controller's. What the controller does is the same for each: reservation, calls, heartbeats, pushes, and one actor's
death, which is that its calls fail as those of a dead process do."""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import ray
from ray.util.placement_group import remove_placement_group

from openrlhf_tir.cluster.engine_handle import EngineHandle
from openrlhf_tir.cluster.learner_group import LearnerGroup
from openrlhf_tir.cluster.nodes import engine_room, learner_room
from openrlhf_tir.cluster.ray_session import place, worker_env
from openrlhf_tir.cluster.rollout_actor import RolloutActor
from openrlhf_tir.cluster.shared_dir import marked
from openrlhf_tir.cluster.tokens import tokens
from openrlhf_tir.config import Config
from openrlhf_tir.waiting.deadlines import Deadline


class Host:
    """Async Ray actor. `make(i)` is the actor i; its work runs beside all else, or, a rank's, in threads."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make, self.actors = make, dict[str, Any]()
        self.dead: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def call(self, who: str, index: int, method: str, *args: Any) -> Any:
        """The answer of the actor `who`, which its first call makes: Ray keeps no order among the calls of an async
        actor. Raises ActorDiedError when it is dead, or dies meanwhile."""
        if who not in self.actors:
            self.actors[who] = self.make(index)
        function = getattr(self.actors[who], method)
        work = function(*args) if asyncio.iscoroutinefunction(function) else asyncio.to_thread(function, *args)
        doing, dying = asyncio.ensure_future(work), asyncio.ensure_future(self.dead[who].wait())
        try:
            await asyncio.wait({doing, dying}, return_when=asyncio.FIRST_COMPLETED)
            if self.dead[who].is_set():
                raise ray.exceptions.ActorDiedError
            return doing.result()
        finally:
            doing.cancel()
            dying.cancel()

    async def die(self, who: str) -> None:
        self.dead[who].set()


class Handle:
    """What an actor's handle is to its owner: a method for each of its own, with `remote` and `options`; an id."""

    def __init__(self, host: Any, index: int) -> None:
        self.host, self.index, self.who = host, index, uuid.uuid4().hex
        self._actor_id = SimpleNamespace(hex=lambda: self.who)

    def __getattr__(self, method: str) -> Any:
        def remote(*args: Any, call: Any = self.host.call) -> Any:
            return call.remote(self.who, self.index, method, *args)

        def options(**given: Any) -> Any:
            return SimpleNamespace(remote=lambda *args: remote(*args, call=self.host.call.options(**given)))

        return SimpleNamespace(remote=remote, options=options)

    def end(self) -> None:
        self.host.die.remote(self.who)


class HostedEngine(EngineHandle):
    def kill(self) -> None:
        if not self.given_up.done():
            self.given_up.set_result(None)
        self.actor.end()
        remove_placement_group(self.placement)


class HostedRanks(LearnerGroup):
    async def stop(self) -> None:
        remove_placement_group(self._placement)


class Hosts:
    """Processes with `per_process` actors each; closed with Ray."""

    def __init__(self, cfg: Config, per_process: int) -> None:
        self.cfg, self.per_process, self.hosts = cfg, per_process, dict[tuple[str, int], Any]()

    def handle(self, kind: str, make: Callable[[int], Any], index: int) -> Handle:
        at = kind, index // self.per_process
        if at not in self.hosts:
            self.hosts[at] = self.process(make)
        return Handle(self.hosts[at], index)

    def process(self, make: Callable[[int], Any]) -> Any:
        asked = {"num_cpus": 0, "max_concurrency": 10_000, "runtime_env": {"env_vars": worker_env(self.cfg)}}
        return ray.remote(Host).options(**asked).remote(make)

    async def engine(
        self,
        make: Callable[[int], Any],
        index: int,
        env_urls: Mapping[str, Any],
        on_death: Callable[[EngineHandle, str], None],
    ) -> EngineHandle:
        """As cluster/engine_handle.py spawns one: reserved, asked whether it sees the run's directory, started."""
        placement = await place(engine_room(self.cfg), f"rollout engine {index}", self.cfg)
        member = HostedEngine(index, self.handle("engine", make, index), placement, on_death, self.cfg)
        deadline = Deadline.of(self.cfg, "timeouts.start_s")
        try:
            with marked(self.cfg.run_dir) as mark:
                await member.call(RolloutActor.check_node, mark, {}, deadline=deadline)
            await member.call(RolloutActor.start, self.cfg, env_urls, tokens(self.cfg), deadline=deadline)
        except BaseException:
            member.kill()
            raise
        return member

    async def ranks(self, make: Callable[[int], Any]) -> LearnerGroup:
        """As LearnerGroup starts them."""
        n = self.cfg.actor.world_size
        group = HostedRanks(self.cfg, [], await place(learner_room(self.cfg), f"{n} learner ranks", self.cfg))
        group.ranks += [self.handle("rank", make, i) for i in range(n)]
        deadline = Deadline.of(self.cfg, "timeouts.start_s")
        with marked(self.cfg.run_dir) as mark:
            await group._all([r.check_node.remote(mark, {}) for r in group.ranks], "check_node", deadline)
        await group._all([r.start.remote(self.cfg, "", 0) for r in group.ranks], "start", deadline)
        return group
