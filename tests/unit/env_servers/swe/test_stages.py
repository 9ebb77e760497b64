"""Start, agent and evaluate overlap: no stage holds the workers of another. Orders of events, on a backend whose every
step waits to be let go."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict

import pytest

from env_servers.admission import Admission, CapacityFull
from env_servers.serving import EnvService, ServingConfig
from env_servers.swe.env import Shared, SweEnv
from env_servers.swe.grade import Report
from env_servers.swe.session import ToolResult
from env_servers.swe.stages import Stages
from env_servers.swe.task import SweTask
from openrlhf_tir.protocol import ResetRequest, StepRequest

FINISH, LS = (
    json.dumps([{"name": name, "arguments": arguments}])
    for name, arguments in (("finish", {}), ("execute_bash", {"command": "ls"}))
)


class Gate:
    """What begins here waits until it is let go, and is known by its session's name."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self._open: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._changed = asyncio.Condition()

    async def __call__(self, name: str) -> None:
        async with self._changed:
            self.inside.append(name)
            self._changed.notify_all()
        await self._open[name].wait()

    def let(self, *names: str) -> None:
        for name in names:
            self._open[name].set()

    async def holds(self, *names: str) -> None:
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(lambda: self.inside == list(names))


class GatedBackend:
    def __init__(self) -> None:
        self.start, self.command, self.evaluate = Gate(), Gate(), Gate()

    async def begin(self, task: SweTask) -> GatedWork:
        await self.start(task.repo)
        return GatedWork(self, task.repo)


class GatedWork:
    def __init__(self, backend: GatedBackend, name: str) -> None:
        self._backend, self._name = backend, name

    async def bash(self, command: str, is_input: bool, seconds: float) -> ToolResult:
        await self._backend.command(self._name)
        return ToolResult("done")

    async def patch(self) -> bytes:
        return b"patch"

    async def judge(self, patch: bytes) -> Report:
        await self._backend.evaluate(self._name)
        return Report(True, "resolved")

    async def close(self) -> None:
        pass


class Server:
    def __init__(self, *, workers: int, start: int = 9, evaluate: int = 9, max_waiting_starts: int = 9) -> None:
        self.backend, self.stages = (
            GatedBackend(),
            Stages(start=start, evaluate=evaluate, max_waiting_starts=max_waiting_starts),
        )
        shared = Shared(self.backend, self.stages, 5.0)
        self.service = EnvService(
            lambda: SweEnv(shared), ServingConfig("swe", "calls", workers=workers), self.stages.gauges
        )

    def open(self, name: str) -> asyncio.Task:
        return asyncio.create_task(self.service.sessions.open(ResetRequest(session_id=name, task={"repo": name})))

    def step(self, name: str, step_id: int, action: str) -> asyncio.Task:
        return asyncio.create_task(
            self.service.step(StepRequest(session_id=name, step_id=step_id, action=action, deadline_s=60))
        )


async def test_agents_work_and_sessions_start_while_patches_are_judged():
    s = Server(workers=1, evaluate=2)
    s.backend.start.let("a", "b", "c")
    await asyncio.gather(s.open("a"), s.open("b"), s.open("c"))
    judged = [s.step("a", 0, FINISH), s.step("b", 0, FINISH)]
    await s.backend.evaluate.holds("a", "b")  # with one worker: the first has left its place to the second
    working, starting = s.step("c", 0, LS), s.open("d")
    await s.backend.command.holds("c")
    await s.backend.start.holds("a", "b", "c", "d")
    text = s.service.metrics.render()[0].decode()
    for line in ("env_starting 1.0", "env_running 1.0", "env_evaluating 2.0", "env_evaluations_waiting 0.0"):
        assert line in text.splitlines(), text
    s.backend.command.let("c")
    s.backend.evaluate.let("a", "b")
    s.backend.start.let("d")
    assert [r.reward for r in await asyncio.gather(*judged)] == [1.0, 1.0] and (await working).outcome == "ok"
    await starting


async def test_evaluations_wait_for_evaluate_workers_in_order():
    s = Server(workers=4, evaluate=1)
    s.backend.start.let("a", "b")
    await asyncio.gather(s.open("a"), s.open("b"))
    first = s.step("a", 0, FINISH)
    await s.backend.evaluate.holds("a")
    second = s.step("b", 0, FINISH)
    while s.stages.evaluate.waiting != 1:
        await asyncio.sleep(0)
    assert (
        s.backend.evaluate.inside == ["a"] and "env_evaluations_waiting 1.0" in s.service.metrics.render()[0].decode()
    )
    s.backend.evaluate.let("a", "b")
    assert [(await t).reward for t in (first, second)] == [1.0, 1.0] and s.backend.evaluate.inside == ["a", "b"]


async def test_starts_wait_for_start_workers_and_excess_ones_are_refused_with_a_retry_time():
    s = Server(workers=1, start=1, max_waiting_starts=1)
    first = s.open("a")
    await s.backend.start.holds("a")
    second = s.open("b")
    while s.stages.start.waiting != 1:
        await asyncio.sleep(0)
    with pytest.raises(CapacityFull):
        await s.open("c")
    assert len(s.service.sessions) == 2
    s.backend.start.let("a", "b")
    await asyncio.gather(first, second)
    assert s.backend.start.inside == ["a", "b"]


async def test_a_slot_released_twice_is_passed_on_once():
    admission = Admission(1, 0)
    async with admission.slot() as slot:
        slot.release()
        slot.release()
        assert admission.running == 0
        async with admission.slot():
            assert admission.running == 1
    assert admission.running == 0
    async with admission.slot():
        with pytest.raises(CapacityFull):
            async with admission.slot():
                pass
