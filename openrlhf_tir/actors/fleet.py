"""Fleet: as many rollout actors as are wanted, whatever happens to them. Joins, deaths, silence, growing and shrinking; no Ray here.

    resize(n) --> too few: spawn -> prove -> join the router          too many: drain -> stop the youngest
    heartbeat --> silent for 3 of them: suspect, gets no groups       for `unresponsive_s`: lost
    lost      --> leave the router, kill, another in its place

A start that fails is tried again, pausing twice as long each time, for as long as others work; with nobody left the third failure is
the end: whoever waits for an actor gets PipelineError.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from ..errors import EngineGone
from .router import Router

log = logging.getLogger(__name__)
FIRST_PAUSE_S = 5.0
MAX_PAUSE_S = 300.0
HOPELESS = 3
MISSED = 3
"""Heartbeats without an answer that make a suspect."""


class Actor(Protocol):
    @property
    def index(self) -> int: ...
    @property
    def name(self) -> str: ...
    async def heartbeat(self) -> None:
        """Raises EngineGone when the process is no more."""

    async def stop(self) -> None:
        """In good order; must end."""

    def kill(self) -> None: ...


A = TypeVar("A", bound=Actor)


class Fleet(Generic[A]):
    """`spawn(index)` starts an actor, `prove(actor)` brings it to the current weights. Belongs to one event loop."""

    def __init__(self, spawn: Callable[[int], Awaitable[A]], *, size: int, heartbeat_s: float = 10.0, unresponsive_s: float = 300.0) -> None:
        self._spawn, self.size, self.heartbeat_s, self.unresponsive_s = spawn, size, heartbeat_s, unresponsive_s
        self.router: Router[A] = Router()
        self.members: list[A] = []
        """Everyone who samples, those that drain or are silent included: all of them need the weights."""
        self.prove: Callable[[A], Awaitable[None]] | None = None
        self.on_lost: Callable[[A], None] = lambda actor: None
        self._starting: dict[int, asyncio.Task] = {}
        self._minding: dict[A, asyncio.Task] = {}
        self._retiring: dict[A, asyncio.Task] = {}
        self._failures = 0

    async def start(self) -> None:
        """The first `size` actors. Raises what one of them raised; then none is left."""
        started = await asyncio.gather(*(self._spawn(i) for i in range(self.size)), return_exceptions=True)
        if failures := [a for a in started if isinstance(a, BaseException)]:
            for actor in started:
                if not isinstance(actor, BaseException):
                    actor.kill()
            raise failures[0]
        for actor in started:
            self._join(actor)

    def resize(self, size: int) -> None:
        """From now on `size` actors are wanted."""
        self.size = size
        self._reconcile()

    def lost(self, actor: A, why: str) -> None:
        """The actor is of no use any more; what it ran is gone."""
        if actor not in self.members:
            return
        log.warning("%s is lost: %s", actor.name, why)
        self._leave(actor)
        actor.kill()
        self.on_lost(actor)
        self._reconcile()

    async def stop(self) -> None:
        """End everyone."""
        tasks = [*self._starting.values(), *self._minding.values(), *self._retiring.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(actor.stop() for actor in self.members), return_exceptions=True)
        self.members.clear()

    def _reconcile(self) -> None:
        staying = [a for a in self.members if a not in self._retiring]
        have = len(staying) + len(self._starting)
        for _ in range(self.size - have):
            taken = {a.index for a in self.members} | self._starting.keys()
            index = next(i for i in range(len(taken) + 1) if i not in taken)
            self._starting[index] = asyncio.create_task(self._grow(index), name=f"start rollout-{index}")
        too_many = have - self.size
        for index in sorted(self._starting, reverse=True)[: max(0, too_many)]:
            self._starting.pop(index).cancel()
            too_many -= 1
        for actor in sorted(staying, key=lambda a: a.index, reverse=True)[: max(0, too_many)]:
            self._retiring[actor] = asyncio.create_task(self._retire(actor), name=f"retire {actor.name}")

    async def _grow(self, index: int) -> None:
        pause = FIRST_PAUSE_S
        while True:
            try:
                actor = await self._start_proved(index)
            except Exception as e:  # whatever kept it from starting: the cluster, the model, the push; the others go on meanwhile
                self._failures += 1
                log.error("rollout-%d did not start (%s: %s); next try in %g s", index, type(e).__name__, e, pause)
                if not self.members and self._failures >= HOPELESS:
                    del self._starting[index]
                    self.router.give_up(e)
                    return
                await asyncio.sleep(pause)
                pause = min(MAX_PAUSE_S, 2 * pause)
            else:
                del self._starting[index]
                self._join(actor)
                return

    async def _start_proved(self, index: int) -> A:
        actor = await self._spawn(index)
        try:
            if self.prove:
                await self.prove(actor)
        except BaseException:
            actor.kill()
            raise
        return actor

    def _join(self, actor: A) -> None:
        self._failures = 0
        self.members.append(actor)
        self.router.give_up(None)
        self.router.join(actor.name, actor)
        self._minding[actor] = asyncio.create_task(self._mind(actor), name=f"mind {actor.name}")

    def _leave(self, actor: A) -> None:
        self.members.remove(actor)
        self.router.leave(actor.name)
        for tasks in (self._minding, self._retiring):
            task = tasks.pop(actor, None)
            if task is not None and task is not asyncio.current_task():
                task.cancel()

    async def _retire(self, actor: A) -> None:
        log.info("%s drains", actor.name)
        await self.router.drained(actor.name)
        self._leave(actor)
        await actor.stop()

    async def _mind(self, actor: A) -> None:
        """Ask for a sign of life, again and again. One who is silent gets no groups, and is given up in the end."""
        while True:
            beat = asyncio.ensure_future(actor.heartbeat())
            try:
                patience = MISSED * self.heartbeat_s
                done, _ = await asyncio.wait({beat}, timeout=patience)
                if not done:
                    log.warning("%s has not answered for %g s: it gets no groups", actor.name, patience)
                    self.router.suspect(actor.name, True)
                    done, _ = await asyncio.wait({beat}, timeout=max(0.0, self.unresponsive_s - patience))
                if not done:
                    self.lost(actor, f"no answer for {self.unresponsive_s:g} s")
                    return
                beat.result()
            except EngineGone as e:
                self.lost(actor, str(e))
                return
            finally:
                beat.cancel()
            self.router.suspect(actor.name, False)
            await asyncio.sleep(self.heartbeat_s)
