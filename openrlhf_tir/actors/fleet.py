"""Fleet: as many rollout actors as are wanted, whatever happens to them. Joins, deaths, silence, growing and shrinking;
no Ray here.

    resize(n) --> too few: spawn -> prove -> join the router; too many: drain -> stop the youngest
    heartbeat --> silent for 3 of them: suspect, gets no groups; for `unresponsive_s`: lost, also while being proved
    lost      --> leave the router, kill, another in its place

A start that fails is tried again, pausing twice as long each time up to MAX_PAUSE_S. Each place in the fleet counts its
own failures: with nobody left, and every place failed HOPELESS times in a row, whoever waits for an actor gets
PipelineError. A cluster without room (ClusterFull) is no failure: room may come, and is waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Generic, Protocol, TypeVar

from ..background import kept_running
from ..backoff import backoff_s
from ..errors import BackgroundDied, ClusterFull, EngineGone
from ..suspension import wait_first
from .router import Router

log = logging.getLogger(__name__)
FIRST_PAUSE_S = 5.0
MAX_PAUSE_S = 300.0
HOPELESS = 3
"""Failed starts in a row, of one place in the fleet."""
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
        """End in good order. The call must end by itself."""

    def kill(self) -> None: ...


A = TypeVar("A", bound=Actor)


class Fleet(Generic[A]):
    """`spawn(index)` starts an actor, `prove(actor, admit)` brings it to the current weights.

    Belongs to one event loop. Membership and proof change in one step: whoever proves calls `admit` while no other push
    can begin, without an await between the proof and the call. An actor whose `prove` returns without that call becomes
    a member as well: there was nothing to prove.
    """

    def __init__(
        self,
        spawn: Callable[[int], Coroutine[Any, Any, A]],
        *,
        size: int,
        heartbeat_s: float = 10.0,
        unresponsive_s: float = 300.0,
    ) -> None:
        self._spawn, self.size, self.heartbeat_s, self.unresponsive_s = spawn, size, heartbeat_s, unresponsive_s
        self.router: Router[A] = Router()
        self.members: list[A] = []
        """Everyone who samples, those that drain or are silent included: all of them need the weights."""
        self.prove: Callable[[A, Callable[[], None]], Coroutine[Any, Any, None]] | None = None
        self.starting: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
        """Held by each start that comes after the first ones: by what shares its GPUs with somebody else."""
        self.on_lost: Callable[[A], None] = lambda actor: None
        self._starting: dict[int, asyncio.Task] = {}
        self._watching: dict[A, asyncio.Task] = {}
        self._retiring: dict[A, asyncio.Task] = {}
        self._failures: dict[int, int] = {}
        """How often in a row the start of each place has failed, by index."""

    async def start(self) -> None:
        """The first `size` actors. Raises what the first that failed raised; then, as when cancelled, none is left."""
        starting = [asyncio.create_task(self._spawn(i), name=f"start rollout-{i}") for i in range(self.size)]
        try:
            actors = await asyncio.gather(*starting)
        except BaseException:
            for task in starting:
                task.cancel()
            for actor in await asyncio.gather(*starting, return_exceptions=True):
                if not isinstance(actor, BaseException):
                    actor.kill()
            raise
        for actor in actors:
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
        """End every member and what is starting."""
        tasks = [*self._starting.values(), *self._watching.values(), *self._retiring.values()]
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
            self._failures.pop(index, None)
            too_many -= 1
        for actor in sorted(staying, key=lambda a: a.index, reverse=True)[: max(0, too_many)]:
            self._retiring[actor] = asyncio.create_task(self._retire(actor), name=f"retire {actor.name}")

    async def _grow(self, index: int) -> None:
        full = 0
        while True:
            try:
                async with self.starting():
                    await self._start_proved(index)
            except ClusterFull as e:
                full += 1
                pause = backoff_s(full - 1, first_s=FIRST_PAUSE_S, cap_s=MAX_PAUSE_S)
                log.log(
                    logging.WARNING if full == 1 else logging.DEBUG,
                    "rollout-%d waits for room, tried again until there is some: %s",
                    index,
                    e,
                )
            except Exception as e:
                # whatever kept it from starting: the model, the push, a fault; the others go on meanwhile
                full, failures = 0, self._failures.get(index, 0) + 1
                self._failures[index] = failures
                pause = backoff_s(failures - 1, first_s=FIRST_PAUSE_S, cap_s=MAX_PAUSE_S)
                log.error(
                    "rollout-%d did not start (%s: %s), failure %d in a row; next try in %g s",
                    index,
                    type(e).__name__,
                    e,
                    failures,
                    pause,
                )
                if not self.members and all(self._failures.get(i, 0) >= HOPELESS for i in self._starting):
                    self.router.give_up(e)
            else:
                return
            await asyncio.sleep(pause)

    async def _start_proved(self, index: int) -> None:
        """Start an actor and make it a member. Raises what kept it from it; then it is killed."""
        actor = await self._spawn(index)
        admitted = False

        def admit() -> None:
            nonlocal admitted
            if not admitted:
                admitted = True
                del self._starting[index]
                self._join(actor)

        try:
            if self.prove:
                await self._prove_watched(actor, self.prove, admit)
        except Exception:
            if not admitted:  # a member that fails later is found by its heartbeats
                actor.kill()
                raise
        except BaseException:
            if not admitted:
                actor.kill()
            raise
        admit()

    async def _prove_watched(
        self, actor: A, prove: Callable[[A, Callable[[], None]], Coroutine[Any, Any, None]], admit: Callable[[], None]
    ) -> None:
        """It may wait long for its turn, behind a learner's step: a death or hang meanwhile is noticed. EngineGone."""
        proving = asyncio.create_task(prove(actor, admit), name=f"prove {actor.name}")
        watching = asyncio.create_task(self._beats(actor), name=f"watch {actor.name}")
        try:
            await asyncio.wait({proving, watching}, return_when=asyncio.FIRST_COMPLETED)
            (proving if proving.done() else watching).result()
        finally:
            proving.cancel()
            watching.cancel()
            await asyncio.gather(proving, watching, return_exceptions=True)

    def _join(self, actor: A) -> None:
        self._failures.pop(actor.index, None)
        self.members.append(actor)
        self.router.give_up(None)
        self.router.join(actor.name, actor)
        self._watching[actor] = asyncio.create_task(self._watch(actor), name=f"watch {actor.name}")

    def _leave(self, actor: A) -> None:
        self.members.remove(actor)
        self.router.leave(actor.name)
        for tasks in (self._watching, self._retiring):
            task = tasks.pop(actor, None)
            if task is not None and task is not asyncio.current_task():
                task.cancel()

    async def _retire(self, actor: A) -> None:
        log.info("%s drains", actor.name)
        await self.router.drained(actor.name)
        self._leave(actor)
        try:
            await actor.stop()
        except Exception as e:
            # it has left already: nobody waits for it, and nobody else would say that it had to be killed
            log.warning("%s did not stop in good order (%s: %s) and is killed", actor.name, type(e).__name__, e)
            actor.kill()

    async def _watch(self, actor: A) -> None:
        """For as long as it is a member. An error of the watching itself is tried again; one that stays costs the
        actor, not the run."""

        async def until_lost() -> None:
            try:
                await self._beats(actor)
            except EngineGone as e:
                self.lost(actor, str(e))

        try:
            await kept_running(f"heartbeat of {actor.name}", until_lost, first_pause_s=self.heartbeat_s)
        except BackgroundDied as e:
            self.lost(actor, str(e))

    async def _beats(self, actor: A) -> None:
        """Ask for a sign of life, again and again. Who is silent gets no groups; for `unresponsive_s`: EngineGone."""
        while True:
            beat = asyncio.ensure_future(actor.heartbeat())
            try:
                patience = MISSED * self.heartbeat_s
                done = await wait_first({beat}, patience)
                if not done:
                    log.warning("%s has not answered for %g s: it gets no groups", actor.name, patience)
                    self.router.suspect(actor.name, True)
                    done = await wait_first({beat}, max(0.0, self.unresponsive_s - patience))
                if not done:
                    raise EngineGone(f"no answer for {self.unresponsive_s:g} s (rollout.unresponsive_s)")
                beat.result()
            finally:
                beat.cancel()
            self.router.suspect(actor.name, False)
            await asyncio.sleep(self.heartbeat_s)
