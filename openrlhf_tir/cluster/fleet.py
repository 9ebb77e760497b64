"""Keep the wanted number of engines running, whatever happens to them: joins, deaths, silence, growing, shrinking.

    resize(n)    too few engines: launch one, prove its weights, add it to the router
                 too many: let the highest indices drain, then stop them; one that still drains stays if the number
                 grows again
    heartbeats   no answer MISSED_HEARTBEATS times: the engine gets no new groups; for `unresponsive`: it is lost,
                 also while its weights are being proved
    lost         it leaves the router, is killed, and another one is launched in its place

A launch that fails is repeated after a pause that doubles each time, up to MAX_PAUSE_S. Each index counts its own
failures: if no engine is left and every index failed MAX_LAUNCH_FAILURES times in a row, whoever waits for an engine
gets PipelineError. A cluster without room (ClusterFull) is no failure: it is waited for.

EnginePool (cluster/engine_pool.py) gives the functions that launch and prove an engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ..errors import BackgroundDied, ClusterFull, EngineGone
from ..pipeline.router import Router
from ..waiting.background import kept_running
from ..waiting.backoff import backoff_s
from ..waiting.deadlines import Deadline
from ..waiting.suspension import wait_first

if TYPE_CHECKING:
    from .engine_handle import EngineHandle

log = logging.getLogger(__name__)
FIRST_PAUSE_S = 5.0
MAX_PAUSE_S = 300.0
MAX_LAUNCH_FAILURES = 3
"""Failed launches in a row, of every missing engine, after which waiting callers get PipelineError."""
HEARTBEAT_S = 10.0
"""Longest pause between two heartbeats of an engine."""
HEARTBEATS = 10
"""Fewest heartbeats within the silence after which an engine is lost."""
MAX_BROKEN_HEARTBEATS = 5
"""Errors in a row of the asking itself after which the engine is given up."""
MISSED_HEARTBEATS = 3
"""Heartbeat intervals without an answer after which an engine gets no new groups."""


Admit = Callable[[], None]
"""Makes the engine a member. Called while no other push can begin, without an await between the proof and the call, so
that membership and proof change in one step."""
Prover = Callable[["EngineHandle", Admit], Coroutine[Any, Any, None]]
"""Brings a new engine to the current weights, proves them, and calls its second argument in the same step."""


class Fleet:
    """The engines of a run and their lives. Belongs to one event loop."""

    def __init__(
        self,
        launch: Callable[[int], Coroutine[Any, Any, EngineHandle]],
        *,
        size: int,
        unresponsive: Deadline,
    ) -> None:
        """Create a fleet; nothing is launched yet.

        Args:
            launch: Starts the engine with the given index.
            size: Number of engines.
            unresponsive: The silence after which an engine is lost.
        """
        self._launch = launch
        self.size = size
        self.unresponsive = unresponsive
        self.heartbeat_s = min(HEARTBEAT_S, unresponsive.seconds / HEARTBEATS)
        self.router: Router[EngineHandle] = Router()
        self.members: list[EngineHandle] = []
        """The engines that sample, draining and silent ones included: all of them need the weights. Callers may keep a
        reference: the list object never changes."""
        self.prove: Prover | None = None
        """Brings a new engine to the current weights and calls its second argument. An engine for which it returns
        without that call becomes a member as well: there was nothing to prove."""
        self.during_launch: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
        """Entered for each launch after the first ones, until the engine is a member (for GPUs that are shared)."""
        self.on_lost: Callable[[EngineHandle], None] = lambda engine: None
        self._launching: dict[int, asyncio.Task] = {}
        self._watching: dict[EngineHandle, asyncio.Task] = {}
        self._retiring: dict[EngineHandle, asyncio.Task] = {}
        self._failures: dict[int, int] = {}
        """Failed launches in a row, by index."""

    async def start(self) -> None:
        """Launch the first engines.

        Raises what the first failed launch raised. In that case, and when cancelled, no engine is left.
        """
        launches = [asyncio.create_task(self._launch(i), name=f"start rollout-{i}") for i in range(self.size)]
        try:
            engines = await asyncio.gather(*launches)
        except BaseException:
            for task in launches:
                task.cancel()
            for engine in await asyncio.gather(*launches, return_exceptions=True):
                if not isinstance(engine, BaseException):
                    engine.kill()
            raise
        for engine in engines:
            self._join(engine)

    def resize(self, size: int) -> None:
        """Set the number of engines. New ones are launched; surplus ones finish their groups and are stopped.

        Those that have not finished their groups yet stay if the number grows again.
        """
        self.size = size
        self._reconcile()

    def mark_lost(self, engine: EngineHandle, reason: str) -> None:
        """Kill an engine and launch another in its place. What it ran is gone."""
        if engine not in self.members:
            return
        log.warning("%s is lost: %s", engine.name, reason)
        self._leave(engine)
        engine.kill()
        self.on_lost(engine)
        self._reconcile()

    async def stop(self) -> None:
        """Stop every member and every launch."""
        tasks = [*self._launching.values(), *self._watching.values(), *self._retiring.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(engine.stop() for engine in self.members), return_exceptions=True)
        self.members.clear()

    def _reconcile(self) -> None:
        """Begin what brings the number of engines to `size`."""
        staying = [engine for engine in self.members if engine not in self._retiring]
        number = len(staying) + len(self._launching)
        # An engine that still drains has the weights, and holds its GPU: where that is shared with the learner, another
        # one would have no place.
        for engine in sorted(self._retiring, key=lambda engine: engine.index)[: max(0, self.size - number)]:
            self._retiring.pop(engine).cancel()
            self.router.keep(engine.name)
            number += 1
        for _ in range(self.size - number):
            taken = {engine.index for engine in self.members} | self._launching.keys()
            index = next(i for i in range(len(taken) + 1) if i not in taken)
            task = asyncio.create_task(self._launch_until_admitted(index), name=f"start rollout-{index}")
            self._launching[index] = task
        surplus = number - self.size
        # Engines that are still being launched have no groups, so they go first.
        for index in sorted(self._launching, reverse=True)[: max(0, surplus)]:
            self._launching.pop(index).cancel()
            self._failures.pop(index, None)
            surplus -= 1
        for engine in sorted(staying, key=lambda engine: engine.index, reverse=True)[: max(0, surplus)]:
            self._retiring[engine] = asyncio.create_task(self._retire(engine), name=f"retire {engine.name}")

    async def _launch_until_admitted(self, index: int) -> None:
        """Repeat the launch of an engine, with growing pauses, until it is a member."""
        refusals = 0
        while True:
            try:
                async with self.during_launch():
                    await self._launch_and_admit(index)
                return
            except ClusterFull as error:
                refusals += 1
                pause_s = backoff_s(refusals - 1, first_s=FIRST_PAUSE_S, cap_s=MAX_PAUSE_S)
                log.log(
                    logging.WARNING if refusals == 1 else logging.DEBUG,
                    "rollout-%d waits for room in the cluster: %s",
                    index,
                    error,
                )
            except Exception as error:
                # Whatever kept it from starting (the model, the push, a bug) must not end the other engines' run.
                refusals = 0
                failures = self._failures.get(index, 0) + 1
                self._failures[index] = failures
                pause_s = backoff_s(failures - 1, first_s=FIRST_PAUSE_S, cap_s=MAX_PAUSE_S)
                log.error(
                    "rollout-%d did not start (%s: %s), failure %d in a row; next try in %g s",
                    index,
                    type(error).__name__,
                    error,
                    failures,
                    pause_s,
                )
                hopeless = all(self._failures.get(i, 0) >= MAX_LAUNCH_FAILURES for i in self._launching)
                if hopeless and not self.members:
                    self.router.set_launch_error(error)
            await asyncio.sleep(pause_s)

    async def _launch_and_admit(self, index: int) -> None:
        """Launch an engine once and make it a member. What kept it from that is raised, and the engine killed."""
        engine = await self._launch(index)
        launch = asyncio.current_task()
        admitted = False

        def admit() -> None:
            nonlocal admitted
            # A resize may have given this launch up since the last await.
            if not admitted and self._launching.get(index) is launch:
                admitted = True
                del self._launching[index]
                self._join(engine)

        try:
            if self.prove:
                await self._prove_while_alive(engine, self.prove, admit)
        except BaseException as error:
            if not admitted:
                engine.kill()
                raise
            if not isinstance(error, Exception):
                raise
            # It is a member already; if it fails later, its heartbeats find out.
        admit()
        if not admitted:
            engine.kill()

    async def _prove_while_alive(self, engine: EngineHandle, prove: Prover, admit: Admit) -> None:
        """Prove an engine, and notice if it dies or hangs while it waits for its turn behind a learner's step.

        Raises:
            EngineGone: It died, or did not answer for too long.
        """
        proving = asyncio.create_task(prove(engine, admit), name=f"prove {engine.name}")
        watching = asyncio.create_task(self._send_heartbeats(engine), name=f"watch {engine.name}")
        try:
            await asyncio.wait({proving, watching}, return_when=asyncio.FIRST_COMPLETED)
            (proving if proving.done() else watching).result()
        finally:
            proving.cancel()
            watching.cancel()
            await asyncio.gather(proving, watching, return_exceptions=True)

    def _join(self, engine: EngineHandle) -> None:
        self._failures.pop(engine.index, None)
        self.members.append(engine)
        self.router.set_launch_error(None)
        self.router.join(engine.name, engine)
        self._watching[engine] = asyncio.create_task(self._watch(engine), name=f"watch {engine.name}")

    def _leave(self, engine: EngineHandle) -> None:
        self.members.remove(engine)
        self.router.leave(engine.name)
        for tasks in (self._watching, self._retiring):
            task = tasks.pop(engine, None)
            if task is not None and task is not asyncio.current_task():
                task.cancel()

    async def _retire(self, engine: EngineHandle) -> None:
        """Let an engine finish its groups, then stop it."""
        log.info("%s drains", engine.name)
        await self.router.wait_until_drained(engine.name)
        self._leave(engine)
        try:
            await engine.stop()
        except Exception as error:
            # It has left already, so nobody waits for it and nobody else would report this.
            log.warning(
                "%s did not stop in good order (%s: %s) and is killed", engine.name, type(error).__name__, error
            )
            engine.kill()

    async def _watch(self, engine: EngineHandle) -> None:
        """Watch a member until it is lost.

        An error of the watching itself is tried again; one that stays costs the engine and not the run.
        """

        async def until_lost() -> None:
            try:
                await self._send_heartbeats(engine)
            except EngineGone as error:
                self.mark_lost(engine, str(error))

        try:
            await kept_running(
                f"heartbeat of {engine.name}",
                until_lost,
                attempts=MAX_BROKEN_HEARTBEATS,
                first_pause_s=self.heartbeat_s,
            )
        except BackgroundDied as error:
            self.mark_lost(engine, str(error))

    async def _send_heartbeats(self, engine: EngineHandle) -> None:
        """Ask for a sign of life, again and again. A silent engine gets no new groups.

        Raises:
            EngineGone: It died, or was silent for `unresponsive`.
        """
        while True:
            beat = asyncio.ensure_future(engine.heartbeat())
            try:
                patience_s = MISSED_HEARTBEATS * self.heartbeat_s
                answered = await wait_first({beat}, patience_s)
                if not answered:
                    log.warning("%s has not answered for %g s and gets no new groups", engine.name, patience_s)
                    self.router.set_silent(engine.name, True)
                    answered = await wait_first({beat}, self.unresponsive.seconds - patience_s)
                if not answered:
                    raise EngineGone(f"no answer within {self.unresponsive}")
                beat.result()
            finally:
                beat.cancel()
            self.router.set_silent(engine.name, False)
            await asyncio.sleep(self.heartbeat_s)
