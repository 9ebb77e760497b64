"""Clients that hang up: what nobody waits for any more is dropped when it has not begun, or stopped where it may be."""

from __future__ import annotations

import asyncio

import pytest

from env_servers.env import Env, Step
from env_servers.python_tir.languages import Languages
from env_servers.python_tir.limits import Limits
from env_servers.python_tir.run_code import add_run_code
from env_servers.python_tir.sandbox import Execution, Sandbox
from env_servers.serving import ServingConfig, create_env_app

from ..in_process import Wire, serving, until

pytestmark = pytest.mark.timeout(120)


class Waiting(Sandbox):
    """Runs "wait" until it is cancelled or `go_on` is set; everything else at once."""

    isolation, limits = "none", Limits()

    def __init__(self) -> None:
        self.go_on, self.ran, self.stopped = asyncio.Event(), [], 0

    async def execute(self, snippet, limits):
        self.ran.append(snippet.code)
        try:
            if snippet.code.startswith("wait"):
                await self.go_on.wait()
        except asyncio.CancelledError:
            self.stopped += 1
            raise
        return Execution(snippet.code.encode(), b"", 0, 0.0)


class WaitingEnv(Env):
    def __init__(self, sandbox: Waiting) -> None:
        self._sandbox = sandbox

    async def step(self, action: str, deadline_s: float) -> Step:
        return Step((await self._sandbox.run(action)).stdout.decode())


@pytest.fixture
def sandbox() -> Waiting:
    return Waiting()


@pytest.fixture
async def server(sandbox):
    """(port, the service) of a server with one worker."""
    app = create_env_app(lambda: WaitingEnv(sandbox), ServingConfig(env="waiting", action="text", workers=1))
    add_run_code(app, sandbox, Languages(sandbox, {}))
    async with serving(app) as port:
        yield port, app.state.service


def run(code: str) -> tuple[str, str, dict]:
    return "POST", "/run_code", {"code": code, "language": "python"}


def step(session: str, action: str) -> tuple[str, str, dict]:
    return "POST", "/step", {"session_id": session, "step_id": 0, "action": action, "deadline_s": 60}


async def asking(port: int, *request) -> Wire:
    wire = await Wire.to(port)
    await wire.ask(*request)
    return wire


async def test_code_of_a_client_that_left_is_stopped_and_queued_code_never_runs(server, sandbox):
    port, service = server
    wires = [await asking(port, *run("wait"))]
    await until(lambda: service.admission.running == 1)
    wires += [await asking(port, *run(f"wait {i}")) for i in range(68)]
    await until(lambda: service.admission.waiting == 68)
    for wire in wires[1:]:
        wire.leave()
    await until(lambda: service.admission.waiting == 0)
    assert (sandbox.ran, sandbox.stopped) == (["wait"], 0)
    wires[0].leave()
    wire = await asking(port, *run("print(1)"))
    assert await wire.status() == 200
    assert (sandbox.ran, sandbox.stopped) == (["wait", "print(1)"], 1)


async def test_a_queued_step_is_dropped_with_its_client_and_a_running_one_is_not(server, sandbox):
    port, service = server
    for session in "ab":
        wire = await asking(port, "POST", "/reset", {"session_id": session})
        assert await wire.status() == 200
    runs = await asking(port, *step("a", "wait"))
    await until(lambda: service.admission.running == 1)
    waits = await asking(port, *step("b", "wait too"))
    await until(lambda: service.admission.waiting == 1)
    for wire in (runs, waits):
        wire.leave()
    await until(lambda: service.admission.waiting == 0)
    other = await asking(port, *step("b", "another action"))  # the same step_id: nothing was done with it
    again = await asking(port, *step("a", "wait"))
    sandbox.go_on.set()
    assert (await other.status(), b"another action" in other.body) == (200, True)
    assert (await again.status(), b'"observation":"wait"' in again.body) == (200, True)
    assert (sandbox.ran, sandbox.stopped) == (["wait", "another action"], 0)


async def test_a_step_keeps_waiting_as_long_as_a_second_caller_of_its_id_waits(server, sandbox):
    port, service = server
    for session in "ab":
        assert await (await asking(port, "POST", "/reset", {"session_id": session})).status() == 200
    await asking(port, *step("a", "wait"))
    await until(lambda: service.admission.running == 1)
    first, second = [await asking(port, *step("b", "x")) for _ in range(2)]
    await until(lambda: service.admission.waiting == 1 and service.sessions.get("b").answers[0].callers == 2)
    first.leave()
    await until(lambda: service.sessions.get("b").answers[0].callers == 1)
    assert service.admission.waiting == 1
    sandbox.go_on.set()
    assert (await second.status(), b'"observation":"x"' in second.body) == (200, True)


async def test_unstarted_items_of_a_batch_are_dropped_when_the_client_leaves(server, sandbox):
    port, service = server
    for session in "abc":
        assert await (await asking(port, "POST", "/reset", {"session_id": session})).status() == 200
    wire = await asking(port, "POST", "/step_batch", [step(s, "wait")[2] for s in "abc"])
    await until(lambda: (service.admission.running, service.admission.waiting) == (1, 2))
    wire.leave()
    await until(lambda: service.admission.waiting == 0)
    sandbox.go_on.set()
    await until(lambda: service.admission.running == 0)
    assert (sandbox.ran, sandbox.stopped) == (["wait"], 0)
