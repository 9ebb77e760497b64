"""Everything that a command needs running: Ray, servers, actors, learner. They start together and stop in reverse
order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from ray.util.placement_group import PlacementGroup
from rich.console import Console

from ..config import Config
from ..config.sections.colocation import NO_SLEEP_ON_CPU, STAND_IN
from ..config.sections.pipeline import ALONE
from ..errors import ConfigError
from ..machine.process_memory import PssSampler
from ..pipeline.colocation.time_share import GpuTimeShare
from ..pipeline.colocation.time_shared import TimeSharedPublisher, TimeSharedRollout
from ..pipeline.stop import StopRequest
from ..telemetry import heartbeat
from ..waiting.deadlines import Deadline
from ..weights.publisher import WeightPublisher
from .engine_pool import EnginePool
from .env_process import EnvServerProcess, begun_servers, env_urls, served_environments, url_remedy
from .learner_group import LearnerGroup
from .nodes import has_gpus, hosts, nodes, only_here, plan, shared_room, transport, wait_for_gpus
from .ray_session import place, ray_session, session_directory
from .reward_models.replicas import rewarding
from .say import say
from .signals import StopSignals, stoppable


@dataclass
class Services:
    """What is running during a session.

    Attributes:
        cfg: The run's configuration.
        console: Where to print.
        pool: The rollout engines.
        ranks: The learner; None if the session has none.
        pss: Measures the memory of the run.
        stop: The request to stop, if there is one.
        time_share: Decides who has the GPUs that engines and learner share; None if each has its own.
        shared: The reservation of shared GPUs.
    """

    cfg: Config
    console: Console
    pool: EnginePool
    ranks: LearnerGroup | None
    pss: PssSampler
    stop: StopRequest
    time_share: GpuTimeShare | None = None
    shared: PlacementGroup | None = None

    @property
    def learner(self) -> LearnerGroup:
        """The learner of a session that has one."""
        assert self.ranks is not None, "the session was opened without a learner"
        return self.ranks

    async def replace_learner(self, cfg: Config) -> None:
        """Start new processes for all ranks, some of which are dead, and kill the old ones. The rollout actors stay
        up."""
        await self.learner.stop()
        if self.time_share:
            self.time_share.learner = None
        async with self.learning():
            self.ranks = await LearnerGroup.start_again(cfg, self.shared)
        if self.time_share:
            self.time_share.learner = self.ranks

    def learning(self) -> AbstractAsyncContextManager[None]:
        """The learner's turn on the GPUs, if it shares them with engines."""
        return self.time_share.learning() if self.time_share else nullcontext()

    def sampling(self) -> AbstractAsyncContextManager[None]:
        """The engines' turn on the GPUs, if they share them with the learner."""
        return self.time_share.sampling() if self.time_share else nullcontext()

    @property
    def rollout(self) -> EnginePool | TimeSharedRollout:
        """The pool, which takes its turn on the GPUs if it shares them."""
        return TimeSharedRollout(self.pool, self.time_share) if self.time_share else self.pool

    def publishing(
        self, publisher: WeightPublisher, phase: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> WeightPublisher | TimeSharedPublisher:
        """Return the publisher, which takes its turn on the GPUs if it shares them. See TimeSharedPublisher."""
        return TimeSharedPublisher(publisher, self.time_share, phase) if self.time_share else publisher


@asynccontextmanager
async def running_services(
    cfg: Config,
    *,
    learner: bool = True,
    beside: asyncio.Future[Any] | None = None,
) -> AsyncIterator[Services]:
    """Start a session and yield what is running.

    Args:
        cfg: The run's configuration.
        learner: Whether to start the learner.
        beside: What is prepared meanwhile. If it fails, the start is given up at once.

    Raises:
        ConfigError: Something cannot be started. What a worker raised is raised as it is, and so is what `beside`
            raised.
        Stopped: A signal ended the session.
    """
    cfg.run_dir.mkdir(parents=True, exist_ok=True)
    if not learner:
        cfg = cfg.model_copy(update={"pipeline": ALONE})
    async with (
        stoppable(cfg) as signals,
        begun_servers(cfg) as servers,  # they start while Ray does, which blocks this process
        _running(cfg, learner, Console(), signals, servers, beside) as services,
    ):
        yield services


@asynccontextmanager
async def _running(
    cfg: Config,
    learner: bool,
    console: Console,
    signals: StopSignals,
    servers: Mapping[str, EnvServerProcess],
    beside: asyncio.Future[Any] | None,
) -> AsyncIterator[Services]:
    with ray_session(cfg, signals), PssSampler() as pss:
        pss.watch(session_directory())
        await wait_for_gpus(cfg)
        # Sections of the environments whose server this run starts on its own node.
        own_servers = [e.section for e in served_environments(cfg).values() if not e.urls]
        if own_servers and not only_here():
            raise ConfigError(
                f"Engines can be placed on {', '.join(map(str, hosts()))}, and an environment server on the loopback"
                f" of the controller's node is reached from that node only. {url_remedy(own_servers)}",
                code="environment",
                setting=f"{own_servers[0]}.url",
            )
        if learner and (remark := transport(cfg)):
            say(console, f"weights: {remark}", "yellow")
        for line in plan(cfg, nodes(), learner=learner):
            say(console, line)
        async with env_urls(cfg, servers) as urls, rewarding(cfg):
            starting = "starting engines and learner" if learner else "starting engines"
            with console.status(starting), heartbeat.doing(starting):
                parts = await _unless_fails(beside, _start(cfg, urls, learner))
            pool, ranks, time_share, shared = parts
            services = Services(cfg, console, pool, ranks, pss, signals.stop, time_share, shared)
            try:
                yield services
            finally:
                try:
                    await pool.stop()
                finally:
                    if services.ranks:
                        await services.ranks.stop()


ServiceParts = tuple[EnginePool, LearnerGroup | None, GpuTimeShare | None, PlacementGroup | None]
"""Engines, learner, and, where they are on the same GPUs, whose turn it is there and their reservation."""


async def _start(cfg: Config, urls: Mapping[str, list[str]], learner: bool) -> ServiceParts:
    """Start the engines and, if wanted, the learner. If this fails or is cancelled, none of them is left.

    They start at the same time where they can, because each mostly imports and loads on its own core.
    """
    if not learner:
        return await EnginePool(cfg, urls).start(), None, None, None
    if cfg.train.colocate_all:
        return await _in_turns(cfg, urls)
    if cfg.train.share_gpus:
        shared = await _reserve_shared(cfg)
        pool, ranks = await _all_or_none(EnginePool(cfg, urls, shared=shared).start(), LearnerGroup.start(cfg, shared))
        return pool, ranks, None, shared
    # The learner's room comes before any engine's: Ray gives each engine the emptiest node, so ranks that need all GPUs
    # of a node would find a part of every node taken.
    reservation = await LearnerGroup.reserve(cfg)
    pool, ranks = await _all_or_none(EnginePool(cfg, urls).start(), LearnerGroup.start(cfg, reserved=reservation))
    return pool, ranks, None, None


async def _unless_fails(beside: asyncio.Future[Any] | None, start: Coroutine[Any, Any, ServiceParts]) -> ServiceParts:
    """Return what `start` gives. If `beside` fails first, cancel it and raise what `beside` raised."""
    starting = asyncio.create_task(start, name="start the services")
    try:
        if beside is not None:
            await asyncio.wait({starting, beside}, return_when=asyncio.FIRST_EXCEPTION)
            if not starting.done():
                beside.result()
        return await starting
    except BaseException:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        raise


async def _reserve_shared(cfg: Config) -> PlacementGroup:
    """Reserve a GPU for each learner rank. The engine beside it takes half of it. Raises ClusterFull."""
    return await place(
        shared_room(cfg),
        f"{cfg.actor.world_size} learner ranks and {cfg.vllm.num_engines} engines, on the same GPUs",
        cfg,
    )


async def _in_turns(cfg: Config, urls: Mapping[str, list[str]]) -> ServiceParts:
    """Start engines and learner on the same GPUs, one after the other.

    An engine measures the free memory as it starts, and takes its share of that.
    """
    if cfg.rollout.engine != STAND_IN and not has_gpus():
        raise ConfigError(
            f"train.colocate_all needs GPUs, and Ray knows of none: {', '.join(map(str, nodes()))}. {NO_SLEEP_ON_CPU}",
            code="machine",
            setting="train.colocate_all",
        )
    shared = await _reserve_shared(cfg)
    pool = await EnginePool(cfg, urls, shared=shared).start()
    try:
        patience = (
            Deadline.of(cfg, "timeouts.start_s")
            + Deadline.of(cfg, "timeouts.learner_s")
            + Deadline.of(cfg, "rollout.group_deadline_s")
        )
        time_share = GpuTimeShare(pool.members, patience, Deadline.of(cfg, "timeouts.push_s"))
        pool.fleet.during_launch = time_share.starting
        async with time_share.learning():
            ranks = await LearnerGroup.start(cfg, shared)
    except BaseException:
        await pool.stop()
        raise
    time_share.learner = ranks
    return pool, ranks, time_share, shared


async def _all_or_none(*starting: Awaitable[Any]) -> list[Any]:
    """Return what each of `starting` gives. If one fails, or the caller is cancelled, stop all of them.

    One that is still starting when Ray is gone would start another Ray by its first call.
    """
    tasks = [asyncio.ensure_future(start) for start in starting]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(result, BaseException):
                await result.stop()
        raise
