"""The reply to a reset that misses its deadline names the deadline, and one whose session is closed has a reply too."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from env_servers.env import Env, Step
from env_servers.serving import ServingConfig, create_env_app


class Slow(Env):
    """An environment whose reset raises its own TimeoutError, or never returns."""

    def __init__(self, failure, begun=None):
        self._failure = failure
        self._begun = begun or asyncio.Event()

    async def reset(self, task, seed):
        self._begun.set()
        if self._failure == "own error":
            raise TimeoutError("the licence server does not answer")
        await asyncio.Event().wait()
        raise AssertionError("nobody sets the event")


@pytest.mark.parametrize(
    ("failure", "names_deadline", "names_error"), [("deadline", True, False), ("own error", False, True)]
)
async def test_a_late_reset_reads_differently_from_a_failed_one(failure, names_deadline, names_error):
    timeout_s = 0.05 if failure == "deadline" else 600.0
    app = create_env_app(lambda: Slow(failure), ServingConfig(env="slow", action="text", reset_timeout_s=timeout_s))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://env") as http:
        reply = await http.post("/reset", json={"session_id": "s"})
        detail = reply.json()["detail"]
        assert reply.status_code == 500 and detail.startswith("env_error: ")
        assert ("0.05 s" in detail) == names_deadline
        assert ("TimeoutError: the licence server does not answer" in detail) == names_error
        assert (await http.get("/health")).json()["sessions"] == 0


async def test_a_reset_whose_session_is_closed_is_answered():
    begun = asyncio.Event()
    app = create_env_app(
        lambda: Slow("deadline", begun), ServingConfig(env="slow", action="text", reset_timeout_s=600.0)
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://env") as http:
        reset = asyncio.create_task(http.post("/reset", json={"session_id": "s"}))
        async with asyncio.timeout(60):
            await begun.wait()
            assert (await http.delete("/session/s")).json()["closed"]
            assert (await reset).status_code == 404


class Counter(Env):
    """Is made by its reset, which takes a while."""

    def __init__(self, go_on):
        self._go_on = go_on

    async def reset(self, task, seed):
        await self._go_on.wait()
        self.total = 7
        return ""

    async def step(self, action, deadline_s):
        return Step(str(self.total))


async def test_a_step_that_comes_before_the_end_of_its_reset_waits_for_it():
    go_on = asyncio.Event()
    app = create_env_app(lambda: Counter(go_on), ServingConfig(env="counter", action="text"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://env") as http:
        reset = asyncio.create_task(http.post("/reset", json={"session_id": "s"}))
        while not (await http.get("/health")).json()["sessions"]:
            await asyncio.sleep(0)
        body = {"session_id": "s", "step_id": 0, "action": "", "deadline_s": 600.0}
        step = asyncio.create_task(http.post("/step", json=body))
        done, _ = await asyncio.wait([step], timeout=0.1)
        assert not done
        go_on.set()
        assert (await reset).status_code == 200 and (await step).json()["observation"] == "7"
